// SPDX-License-Identifier: Apache-2.0
#pragma once
// Frames between two authenticated peers over any stream, in order, each at most once.
//
// Writes are coalesced: everything sent in one turn of the loop leaves in one system call. Large
// bodies are scattered and gathered, not copied together. A silent peer is pinged and given up.
//
//     auto t = net::connection::connect(network, to, options);
//     auto c = co_await std::move(t);
//     c->send(7, 0, id, head, body);              // queued, leaves at the end of the turn
//     std::optional<net::frame> f = co_await c->receive();
//     co_await c->close();                         // flushes, then waits for the peer's goodbye

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/function.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/net/channel.hpp>
#include <skein/net/detail/closed_news.hpp>
#include <skein/net/detail/inbox.hpp>
#include <skein/net/detail/out_queue.hpp>
#include <skein/net/frame.hpp>
#include <skein/net/network.hpp>
#include <skein/net/options.hpp>
#include <skein/net/stream.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::net {

class admission;

/// Counts of one connection since it was made.
struct connection_statistics {
    std::uint64_t frames_in = 0, frames_out = 0, bytes_in = 0, bytes_out = 0, flushes = 0;
};

/// One end of a connection. Belongs to one loop; share it by shared_ptr. Dropping the last
/// shared_ptr aborts it; close() first for an orderly end.
class connection final : public channel {
public:
    using handle = std::shared_ptr<connection>;

    /// Connects and shakes hands. Only the handshake is bounded (limits::handshake_deadline): put a
    /// with_timeout around it, or use connect_patiently. `via` must live until then.
    ///   errors  those of network::connect; permission_denied (token), mismatch (version, build),
    ///           malformed (not our protocol), timeout
    static task<handle> connect(network& via, address to, connection_options options);
    /// The other side: shakes hands on an accepted stream, of which `first` was read already;
    /// `place`: what its acceptor has given it.
    static task<handle> accept(std::unique_ptr<stream> from, connection_options options,
                               byte_buffer first = {}, admission* place = nullptr);
    /// On a stream that was authenticated before (net::dial, net::authenticate).
    static handle over(std::unique_ptr<stream> authenticated, connection_options options,
                       identity peer);

    [[nodiscard]] const identity& peer() const noexcept override { return peer_; }
    /// "name (pid 7 at host) over tcp:10.0.0.3:6380", for messages.
    [[nodiscard]] const std::string& peer_name() const noexcept override { return peer_name_; }

    /// The host at the other end, see stream::peer_host().
    [[nodiscard]] const std::string& peer_host() const noexcept override { return peer_host_; }

    /// Queues a frame; small bodies are copied into the outgoing buffer, large ones moved.
    ///   errors  closed (after close), the failure of the connection, too_large
    void send(frame f) override;
    /// Queues a frame whose body is head followed by body; the bytes are taken before it returns.
    void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body = {}) override;
    /// Queues a frame whose body others share: it is never copied, and stays until the kernel has
    /// it.
    void send_shared(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                     std::shared_ptr<const byte_buffer> body);
    /// As send, but without a copy of `body`, which must stay valid until this task ends. Suspends
    /// until the kernel has all of it. Cancelling it in between aborts the connection: the frame is
    /// cut.
    task<void> send_borrowed(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                             byte_span head, byte_span body);
    /// Waits while more than limits::max_send_queue bytes are queued; throws like send.
    task<void> send_ready() { return send_ready(options_.bounds.max_send_queue); }
    /// The same with a bound of the caller's own.
    task<void> send_ready(std::size_t most_queued);
    [[nodiscard]] std::size_t queued_bytes() const noexcept { return out_.bytes() + in_flight_; }
    /// Memory that its buffers hold; that of a large frame is given back soon after it.
    [[nodiscard]] std::size_t buffer_bytes() const noexcept;
    /// Hands what is queued to the kernel now instead of at the end of the turn.
    void flush() noexcept override;

    /// The next frame in order; nothing after the peer's orderly close.
    ///   errors  reset, peer_lost (silent), malformed, corrupt, too_large, closed (by us),
    ///           cancelled
    task<std::optional<frame>> receive();

    /// Instead of receive(): `handler` is called from the read loop for every frame, in order. The
    /// view is valid during the call only. An exception from it aborts the connection. Frames that
    /// have arrived before are handed over inside this call. A handler may set another handler.
    void set_handler(unique_function<void(const frame_view&)> handler) override;
    /// Called once when the connection has ended: nullptr = orderly, else why. At once if it has.
    void set_closed_handler(unique_function<void(const error*)> handler) override;
    /// Back-pressure towards the peer: stops reading (we still tell it that we live) until
    /// resume_reading() or close(); nothing else undoes it.
    void pause_reading() noexcept override { inbox_.pause(); }
    void resume_reading() noexcept override;

    /// Orderly end: flushes, says goodbye, waits for the peer's (at most limits::close_deadline).
    /// Never throws; afterwards the stream is closed and all work of the connection has ended.
    task<void> close() override;
    /// Ends at once; the peer sees a reset or an end of stream, we see `why`.
    void abort(error why) noexcept override { end(std::move(why)); }
    /// Waits for the end, whoever caused it; throws only cancelled.
    task<void> wait_closed() override;

    [[nodiscard]] bool is_open() const noexcept override { return state_ == state::open; }
    [[nodiscard]] bool is_connected() const noexcept override { return is_open(); }
    /// True when the kernel reports the death of the peer (Unix sockets).
    [[nodiscard]] bool is_local() const noexcept { return local_; }
    /// Silent for longer than keep_alive::suspect_after right now.
    [[nodiscard]] bool is_suspect() const noexcept { return suspect_; }
    /// For how long nothing has come.
    [[nodiscard]] duration silence() const noexcept { return loop_.now() - last_heard_; }
    /// From now on in place of those of keep_alive.
    void allow_silence(time_span suspect_after, time_span dead_after) noexcept {
        options_.alive.suspect_after = suspect_after;
        options_.alive.dead_after = dead_after;
    }
    /// Why it ended; nothing while open or after an orderly end.
    [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }
    [[nodiscard]] const connection_statistics& statistics() const noexcept { return statistics_; }

    /// Destroyed by the last owner; all its work has ended by then.
    ~connection() override;

private:
    enum class state : std::uint8_t { open, closing, ended };
    enum control : std::uint16_t { ping = 0xff01, pong = 0xff02, goodbye = 0xff03 };

    connection(std::unique_ptr<stream> over, connection_options options, identity peer);

    static task<void> read_loop(std::shared_ptr<connection> self);
    static task<void> write_loop(std::shared_ptr<connection> self);
    task<void> read_large();
    void part_ended() noexcept;

    frame_header header_for(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                            byte_span head, byte_span body) const;
    void check_sendable() const;
    [[noreturn]] void refuse_ended() const;
    [[noreturn]] void refuse_large(std::size_t bytes) const;
    void send_control(control kind) noexcept;
    void request_flush() noexcept {
        if (loop_.is_occupied()) return flush();
        loop_.at_turn_end(hook_);
    }
    void progress(std::size_t written) noexcept;

    bool parse(); // false: more bytes are needed or it has ended
    void deliver(const frame_header& h, byte_span body, byte_buffer* owned);
    void on_control(std::uint16_t kind);
    [[nodiscard]] bool is_drained() const noexcept { return out_.empty() && in_flight_ == 0; }
    static task<void> write_pieces(connection* self, const std::vector<byte_span>* parts);
    [[nodiscard]] std::optional<error> judge(time_point now);
    void begin_goodbye() noexcept;
    void maybe_finished() noexcept;
    void end(std::optional<error> why) noexcept;
    void on_timer();

    struct flush_hook : turn_hook {
        explicit flush_hook(connection& c) noexcept
            : turn_hook([](turn_hook& h) { static_cast<flush_hook&>(h).owner.flush(); }), owner(c) {
        }
        connection& owner;
    };
    struct alive_timer : timer_node {
        explicit alive_timer(connection& c) noexcept
            : timer_node([](timer_node& t) { static_cast<alive_timer&>(t).owner.on_timer(); }),
              owner(c) {}
        connection& owner;
    };

    /// Some time after a large frame its buffer is given back.
    struct idle_timer : timer_node {
        explicit idle_timer(connection& c) noexcept
            : timer_node([](timer_node& t) { static_cast<idle_timer&>(t).owner.give_back(); }),
              owner(c) {}
        connection& owner;
    };
    void give_back() noexcept;

    loop& loop_;
    std::unique_ptr<stream> stream_;
    connection_options options_;
    identity peer_;
    std::string peer_name_, peer_host_;
    bool local_;
    connection_statistics statistics_;

    // Sending: out_ collects; the write loop takes over only when the kernel would block.
    detail::out_queue out_;
    std::size_t in_flight_ = 0; // bytes the write loop is writing
    std::uint64_t queued_total_ = 0, written_total_ = 0, queued_at_tick_ = 0, written_at_tick_ = 0;
    bool blocked_ = false; // the write loop is at work
    event wake_writer_;
    wait_queue drained_;
    flush_hook hook_{*this};

    // Receiving: one large buffer, many frames per read; a large body gets a buffer of its own.
    byte_buffer in_;
    std::size_t begin_ = 0, end_ = 0; // the bytes of in_ that are not parsed yet
    std::optional<frame_header> large_;
    byte_buffer large_body_;
    idle_timer idle_{*this};
    std::size_t large_have_ = 0;
    detail::inbox inbox_; // while it is held nothing is read
    event resumed_;

    // Life.
    state state_ = state::open;
    bool sent_goodbye_ = false, got_goodbye_ = false, suspect_ = false;
    std::optional<error> failure_;
    detail::closed_news closed_;
    event ended_;
    alive_timer timer_{*this};
    time_point last_heard_{}, last_taken_{}, timer_due_{};
    std::int64_t unconfirmed_ticks_ = 0;
    int parts_ = 0;                    // loops that run
    std::shared_ptr<connection> self_; // while they do
    scope tasks_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/connection.ipp>
#include <skein/net/detail/connection_life.ipp>
#endif
