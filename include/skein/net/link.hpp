// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages between two processes, in order, each exactly once, also when the connection below
// breaks.
//
// A connection delivers in order until it breaks, so both sides only count: the sender keeps what
// is not confirmed, the dialling side dials again, both say how many they have, and the rest is
// sent again. The link ends in order (close), or with an error: the peer did not come back in time,
// was restarted, has forgotten the link, or was declared dead. On Unix sockets the kernel reports a
// death: there nothing is kept, and a broken connection is the end.
//
//     auto dialing = net::link::connect(network, to, options);
//     auto l = co_await dialing;
//     l->send(7, 0, id, head, body);               // also while the connection is broken
//     co_await l->close();                         // when the peer has everything
//
// The accepting side is in link_endpoint.hpp.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/function.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/net/channel.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/detail/closed_news.hpp>
#include <skein/net/detail/inbox.hpp>
#include <skein/net/detail/link_window.hpp>
#include <skein/net/dial.hpp>
#include <skein/net/frame.hpp>
#include <skein/net/network.hpp>
#include <skein/net/options.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace skein::net {

/// Kinds from here on belong to links and connections.
inline constexpr std::uint16_t first_link_kind = 0xfe00;

/// Whether a broken connection is the end of the link.
enum class resume_mode : std::uint8_t {
    /// links resume, but not over Unix sockets, where the kernel reports the death of the peer
    automatic,
    on,
    off,
};

/// What a link may keep, and how long it waits for its peer.
struct link_options {
    std::uint64_t incarnation =
        0;                    ///< of this process, never 0 and never reused; 0: drawn for each link
    std::uint64_t expect = 0; ///< the incarnation to be reached; 0: whoever answers
    resume_mode resume = resume_mode::automatic;
    time_span resume_within = time_constants::lan().dead_after; ///< after a break
    /// The same when both sides have nothing more to say (close() was called): nobody waits for a
    /// result.
    time_span part_within = time_constants::lan().dead_after;
    /// The side that dials gives up when it is refused for so long: nobody listens there any more.
    /// Of a peer that cannot be started again under its incarnation that is the end.
    time_span refused_within = duration::max();
    std::size_t window_messages = 65'536;             ///< send_ready() waits while more are kept
    std::size_t window_bytes = std::size_t{16} << 20; ///< the same in bytes
    std::size_t most_messages = std::size_t{1} << 20; ///< send() refuses above
    std::size_t most_bytes = limit::queue_bytes; ///< the same in bytes; one message may exceed it
    std::size_t queue_bytes = std::size_t{1} << 20;      ///< handed to the connection at a time
    std::uint64_t ack_messages = 256;                    ///< confirmed at the latest
    std::size_t ack_bytes = std::size_t{256} << 10;      ///< the same in bytes
    time_span ack_after = std::chrono::milliseconds(50); ///< the same in time
    time_span attempt_timeout =
        std::chrono::seconds(1);               ///< of one dial and one hello, after a break
    reconnect_policy first = {.max_tries = 1}; ///< of connect()
};

/// How a link has ended.
enum class link_end : std::uint8_t {
    none,          ///< it has not
    orderly,       ///< both sides have all messages of the other
    here,          ///< abort(), a handler that threw, a cancelled or dropped link
    by_peer,       ///< the peer has aborted it
    broken,        ///< the connection broke, and this link does not resume
    deadline,      ///< the peer did not come back in time
    declared_dead, ///< declare_dead() on either side
    restarted,     ///< another incarnation answers at the peer's address
    forgotten,     ///< the peer knows no such link (any more)
    refused,       ///< the peer refuses to go on, or said what cannot be
};

/// Counts of one link since it was made.
struct link_statistics {
    std::uint64_t messages_in = 0, messages_out = 0;
    std::uint64_t breaks = 0, resumes = 0; ///< connections lost, and replaced
    std::uint64_t sent_again = 0;          ///< messages
    std::uint64_t acks_in = 0, acks_out = 0;
};

namespace detail {
class link_tables;
struct link_hello;
struct link_answer;
} // namespace detail

/// One end of a link. Belongs to one loop; share it by shared_ptr. Dropping the last shared_ptr
/// aborts it; close() first for an orderly end.
class link final : public channel {
public:
    using handle = std::shared_ptr<link>;

    /// Dials, shakes hands, and agrees on a new link. `via` must outlive the link, which dials
    /// again.
    ///   errors  those of connection::connect and dial_patiently; mismatch (another incarnation
    ///           than expected, another version of links), exhausted (the peer has no place),
    ///           refused
    static task<handle> connect(network& via, address to, connection_options options,
                                link_options how = {});

    [[nodiscard]] const identity& peer() const noexcept override { return peer_; }
    /// "name (pid 7 at host) over tcp:10.0.0.3:6380", for messages.
    [[nodiscard]] const std::string& peer_name() const noexcept override { return peer_name_; }
    /// The peer's host, see stream::peer_host(), as of the newest connection.
    [[nodiscard]] const std::string& peer_host() const noexcept override { return peer_host_; }
    [[nodiscard]] std::uint64_t peer_incarnation() const noexcept { return theirs_; }
    [[nodiscard]] std::uint64_t incarnation() const noexcept { return ours_; }
    /// Grows with every connection of this link.
    [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

    /// Queues a message, also while the connection is broken. The bytes are taken before it
    /// returns.
    ///   errors  closed, the failure of the link, too_large, exhausted (link_options::most_bytes)
    void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body = {}) override;
    /// The same; a large body is moved and never copied.
    void send(frame f) override;
    /// Waits while more than the window is not confirmed, or more than `most_queued` bytes wait for
    /// the network; throws like send.
    task<void> send_ready(std::size_t most_queued);
    task<void> send_ready() { return send_ready(options_.bounds.max_send_queue); }
    /// Bytes that wait for the network.
    [[nodiscard]] std::size_t queued_bytes() const noexcept;
    /// Messages and bytes kept until the peer confirms them; 0 for a link that does not resume.
    [[nodiscard]] std::size_t kept_messages() const noexcept { return window_.messages(); }
    [[nodiscard]] std::size_t kept_bytes() const noexcept { return window_.bytes(); }
    /// Hands what is queued to the kernel now instead of at the end of the turn.
    void flush() noexcept override;

    /// The next message in order; nothing after the peer's orderly close.
    ///   errors  the failure of the link; closed (by us), cancelled
    task<std::optional<frame>> receive();
    /// Instead of receive(): as connection::set_handler. An exception from it aborts the link.
    void set_handler(unique_function<void(const frame_view&)> handler) override;
    /// Called once when the link has ended: nullptr = orderly, else why. At once if it has.
    void set_closed_handler(unique_function<void(const error*)> handler) override;
    /// Back-pressure towards the peer: stops reading until resume_reading() or close().
    void pause_reading() noexcept override;
    void resume_reading() noexcept override;

    /// Orderly end: waits until the peer has everything and has said goodbye, through breaks, at
    /// most limits::close_deadline, and part_within more for a link that resumes. Never throws;
    /// ending() and failure() tell what came of it.
    task<void> close() override;
    /// Ends at once; the peer is told, if it can be.
    void abort(error why) noexcept override;
    /// Ends at once because somebody who knows (an agent, the head) says that the peer is dead.
    /// Should it come back, it is told so.
    void declare_dead(std::string why) noexcept;
    /// Waits for the end, whoever caused it; throws only cancelled.
    task<void> wait_closed() override;

    /// Takes messages: not closing, not ended. A broken connection does not matter.
    [[nodiscard]] bool is_open() const noexcept override { return state_ == state::open; }
    [[nodiscard]] bool is_connected() const noexcept override { return connected_; }
    /// Survives broken connections.
    [[nodiscard]] bool resumes() const noexcept { return resumes_; }
    /// The peer is silent or the connection is broken.
    [[nodiscard]] bool is_suspect() const noexcept {
        return state_ != state::ended &&
               (!connected_ || (connection_ && connection_->is_suspect()));
    }
    [[nodiscard]] link_end ending() const noexcept { return ending_; }
    /// Why it ended; nothing while open or after an orderly end.
    [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }
    /// Why the last connection broke, if no other one has come since: reset (the peer's kernel has
    /// closed it, as it does when a process dies), peer_lost (silence).
    [[nodiscard]] const std::optional<error>& last_break() const noexcept { return break_; }
    [[nodiscard]] const link_statistics& statistics() const noexcept { return statistics_; }

    ~link() override;

private:
    friend class detail::link_tables;
    enum class state : std::uint8_t { open, closing, ended };
    using core = std::shared_ptr<link>;

    link(connection_options options, link_options how, bool dialling);
    static handle handle_of(core made);

    // Connections come and go (detail/link_resume.ipp).
    [[nodiscard]] detail::link_hello hello() const;
    task<void> dial_first(core self);
    static task<void> dial_once(core self, duration limit);
    static task<void> dial_again(core self);
    void take_answer(const detail::link_answer& answer, connection::handle over);
    void begin(const identity& peer, std::string name, std::uint64_t incarnation, bool resumes,
               std::uint64_t window_messages, std::uint64_t window_bytes);
    void attach(connection::handle over, std::uint64_t peer_has);
    void on_connection_end(std::uint64_t generation, const error* why) noexcept;
    void break_off(error why) noexcept;
    void come_back_too_late() noexcept;

    // Sending.
    void check_sendable(std::uint16_t kind, std::size_t bytes) const;
    [[noreturn]] void refuse(std::size_t bytes) const;
    [[nodiscard]] bool is_direct() const noexcept;
    void push_on();
    static task<void> pump(core self, connection::handle over);
    void hand_out();

    // Receiving.
    void on_frame(const frame_view& f);
    void on_own_frame(const frame_view& f);
    void count_received(std::size_t bytes);
    void acknowledge() noexcept;
    void deliver(const frame_view& f);

    // The end.
    void begin_close() noexcept;
    [[nodiscard]] bool is_concluded() const noexcept;
    void settle();
    static task<void> finish(connection::handle over);
    void say_goodbye(std::uint64_t verdict, const std::string& why) noexcept;
    void end(std::optional<error> why, link_end how) noexcept;
    void spawn(task<void> work);
    static task<void> part(core self, task<void> work);
    void release() noexcept;

    struct own_timer : timer_node {
        own_timer(link& l, void (link::*then)() noexcept) noexcept
            : timer_node([](timer_node& t) {
                  auto& self = static_cast<own_timer&>(t);
                  (self.owner.*self.what)();
              }),
              owner(l), what(then) {}
        link& owner;
        void (link::*what)() noexcept;
    };
    void acknowledge_late() noexcept;

    loop& loop_;
    connection_options options_;
    link_options how_;
    identity peer_;
    std::string peer_name_, peer_host_;
    link_statistics statistics_;

    // Who, and by which connection.
    bool dialling_, resumes_ = false, connected_ = false, answered_ = false, dialing_again_ = false;
    std::uint64_t ours_, theirs_ = 0, number_ = 0, generation_ = 0;
    network* via_ = nullptr; // of the dialling side
    address to_;
    connection::handle connection_;
    std::optional<error> break_; // why the last connection ended
    time_point attached_{};      // when the present connection began
    int short_lived_ = 0;        // connections in a row that broke soon after
    own_timer deadline_{*this, &link::come_back_too_late};
    std::shared_ptr<detail::link_tables> tables_; // of the accepting side

    // Sending.
    detail::link_window window_;
    std::uint64_t pumping_ = 0; // the generation whose pump runs
    wait_queue window_change_;

    // Receiving.
    std::uint64_t received_ = 0, told_ = 0; // messages; of them, confirmed
    std::size_t untold_bytes_ = 0;
    std::uint64_t ack_messages_ = 1;
    std::size_t ack_bytes_ = 1;
    own_timer ack_timer_{*this, &link::acknowledge_late};
    detail::inbox inbox_; // while it is held the connection is paused

    // Life.
    state state_ = state::open;
    link_end ending_ = link_end::none;
    bool sent_fin_ = false, got_fin_ = false, finishing_ = false;
    std::optional<error> failure_;
    detail::closed_news closed_;
    event ended_;
    std::size_t parts_ = 0; // tasks that run
    core self_;             // while it lives
    scope tasks_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/link.ipp>
#include <skein/net/detail/link_resume.ipp>
#endif
