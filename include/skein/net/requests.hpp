// SPDX-License-Identifier: Apache-2.0
#pragma once
// Typed requests between two processes, over a link or a connection.
//
//     struct sum_request { static constexpr std::uint16_t number = 1; std::vector<int> items; };
//     struct sum_reply   { static constexpr std::uint16_t number = 2; int sum = 0; };
//
//     auto service = std::make_shared<net::request_service>();
//     // task<sum_reply> add_up(sum_request, net::caller)
//     service->on<sum_request, sum_reply>(&add_up);
//     auto r = net::requests::over(link, service);       // both sides may call
//     auto asking = r->call<sum_reply>(sum_request{{1, 2, 3}});
//     const auto reply = co_await asking;
//
// Each call gives exactly one of reply and error. A handler is cancelled when its caller cancels,
// its deadline passes, or the link has ended. Messages above request_options::control_bytes leave
// in chunks, so that small ones overtake them: messages keep their order only among small ones and
// among large ones.

#include <skein/core/bytes.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/function.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/mutex.hpp>
#include <skein/core/result.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/type_name.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/detail/closed_news.hpp>
#include <skein/net/link.hpp>
#include <skein/net/message.hpp>
#include <skein/net/request_budget.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace skein::net {

/// What a request layer asks of itself and of its peer.
struct request_options {
    std::size_t control_bytes = std::size_t{64}
                                << 10; ///< larger messages leave in chunks; at most 1 MiB
    std::size_t chunk_bytes = std::size_t{1} << 20;  ///< at most 4 MiB
    std::size_t most_message = std::size_t{1} << 30; ///< of one message, each way
    /// Of one peer; what is over is refused (exhausted). A request or reply alone may be larger.
    request_load peer{.running = 1024,
                      .request_bytes = std::size_t{1} << 30,
                      .assembling_bytes = std::size_t{1} << 30,
                      .reply_bytes = std::size_t{256} << 20};
    /// Of our own large messages that have not left, because the peer does not read: above, call()
    /// waits and tell() is refused. One alone may be larger.
    std::size_t call_bytes = std::size_t{256} << 20;
    /// Of small messages that have not left: above, call() and tell() are refused, and where it is
    /// a reply the peer is given up. Links have link_options::most_bytes besides.
    std::size_t unread_bytes = limit::queue_bytes;
};

/// Numbers for calls that may be repeated, on this link or on another one, and run once. One per
/// process; the loop's thread only.
class request_keys {
public:
    /// `client`: of this process, never 0 and never reused: link_options::incarnation of its links.
    /// A call in another name is refused; a plain connection stays with the first name it has seen.
    explicit request_keys(std::uint64_t client) : client_(client) {}

    /// A key in use: as long as it lives, the other side keeps the call's outcome (within its
    /// bounds).
    class key {
    public:
        key(key&& other) noexcept
            : of_(std::exchange(other.of_, nullptr)), number_(other.number_), asked_(other.asked_) {
        }
        key& operator=(key&&) = delete;
        ~key() {
            if (of_ != nullptr) of_->open_.erase(number_);
        }
        [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
        [[nodiscard]] const request_keys& keys() const noexcept { return *of_; }

    private:
        friend class request_keys;
        friend class requests;
        key(request_keys& of, std::uint64_t number) : of_(&of), number_(number) {
            of.open_.insert(number);
        }
        request_keys* of_;
        std::uint64_t number_;
        mutable bool asked_ =
            false; ///< a call with it has left: the next one says that it is a repeat
    };
    /// The next key; this object must outlive it.
    [[nodiscard]] key next() { return key(*this, ++last_); }
    [[nodiscard]] std::uint64_t client() const noexcept { return client_; }
    /// All keys below are not in use any more.
    [[nodiscard]] std::uint64_t done_below() const noexcept {
        return open_.empty() ? last_ + 1 : *open_.begin();
    }

private:
    std::uint64_t client_, last_ = 0;
    std::set<std::uint64_t> open_;
};

/// What a caller may say about one call.
struct request_call_options {
    std::optional<time_span> deadline{};    ///< from now on; travels, and ends the handler too
    const request_keys::key* key = nullptr; ///< repeats with the same key run once
    std::uint64_t generation = 0; ///< refused by a service that knows a newer one; 0: none
};

/// Who asks.
struct caller {
    std::string peer;                   ///< for messages
    std::uint64_t incarnation = 0;      ///< of the peer of a link; 0: over a plain connection
    std::uint64_t generation = 0;       ///< as the caller says
    std::optional<time_point> deadline; ///< in this process's time
};

namespace detail {
struct request_head;
struct request_outcome;
struct request_entry;
class request_wire;

/// What a handler holds while it runs.
struct request_place {
    request_hold running, bytes;
};
} // namespace detail

class requests;

/// Handlers by message number, and what has run already; shared by the request layers of a process.
class request_service {
public:
    using raw_handler = unique_function<task<byte_buffer>(byte_buffer, caller)>;
    using plain_handler = unique_function<byte_buffer(byte_span)>;
    /// Sees each request before its handler, and before it is known whether there is one. Throws
    /// what its caller is told instead; gives bytes that are handled in the stead of those that came.
    using gate = unique_function<std::optional<byte_buffer>(std::uint16_t number, byte_span body)>;
    using waiting_caller = std::pair<std::weak_ptr<requests>, std::uint64_t>; ///< and its call

    /// Bounds of what is remembered of calls with a key.
    struct bounds {
        std::size_t keys_per_client = 65'536;
        std::size_t bytes_per_client = std::size_t{16} << 20; ///< of replies
        std::size_t clients =
            1024; ///< the oldest is forgotten; its repeats are refused from then on
        request_load all = request_budget::most_by_default(); ///< in progress, of all peers
    };

    request_service();
    explicit request_service(bounds b);
    /// With others that share `budget`, whose bounds hold instead of bounds::all.
    request_service(bounds b, std::shared_ptr<request_budget> budget);
    request_service(const request_service&) = delete;
    request_service& operator=(const request_service&) = delete;
    /// close() first.
    ~request_service();

    /// Handles calls with the message M: `handler(M, caller)` is a task<Reply>.
    template <message M, message Reply, class F>
    void on(F handler) {
        add(M::number, type_name(typeid(M)),
            [run = std::make_shared<F>(std::move(handler))](byte_buffer body, caller who) {
                return typed<M, Reply, F>(run, std::move(body), std::move(who));
            });
    }
    /// Handles one-way messages: `handler(M, caller)` is a plain call.
    template <message M, class F>
    void on_tell(F handler) {
        add(M::number, type_name(typeid(M)),
            [run = std::make_shared<F>(std::move(handler))](byte_buffer body, caller who) {
                return told<M, F>(run, std::move(body), std::move(who));
            });
    }
    /// The same in the read loop: `handler(M)` is a plain call that gives the reply, before the next
    /// frame is read, so that all that comes to such handlers keeps its order. What came before and
    /// has a task may begin later. No bound of handlers counts it; a call with a key is refused.
    template <message M, message Reply, class F>
    void on_at_once(F handler) {
        add(M::number, type_name(typeid(M)), {},
            [run = std::move(handler)](byte_span body) mutable {
                const Reply reply = run(detail::decode_message<M>(body, "message"));
                return wire::encode(reply);
            });
    }
    /// One-way messages in the read loop: `handler(M)`. An error ends the link, as do bytes that are
    /// no M.
    template <message M, class F>
    void on_tell_at_once(F handler) {
        add(M::number, type_name(typeid(M)), {},
            [run = std::move(handler)](byte_span body) mutable {
                run(detail::decode_message<M>(body, "message"));
                return byte_buffer();
            });
    }
    /// One of both handlers.
    void add(std::uint16_t number, std::string_view name, raw_handler handler,
             plain_handler at_once = {});

    /// Of a service for one peer: who decides what that may ask for.
    void set_gate(gate by) { gate_ = std::move(by); }

    /// Requests of an older generation are refused from now on (those that name none are not).
    void fence(std::uint64_t generation) noexcept {
        generation_ = std::max(generation_, generation);
    }
    [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

    /// Calls that came again and were answered without running again.
    [[nodiscard]] std::uint64_t repeats() const noexcept { return repeats_; }
    /// What is in progress, of all peers.
    [[nodiscard]] const request_load& held() const noexcept { return budget_->held(); }
    /// Keys that are remembered.
    [[nodiscard]] std::size_t remembered() const noexcept;

    /// Cancels what still runs for callers with keys and waits for it. Never throws.
    task<void> close();

private:
    friend class requests;
    struct client;
    using entry_ptr = std::shared_ptr<detail::request_entry>;

    template <class M, class Reply, class F>
    static task<byte_buffer> typed(std::shared_ptr<F> run, byte_buffer body, caller who) {
        auto work = (*run)(detail::decode_message<M>(body, "message"), std::move(who));
        body = byte_buffer();
        const Reply reply = co_await work;
        co_return wire::encode(reply);
    }
    template <class M, class F>
    static task<byte_buffer> told(std::shared_ptr<F> run, byte_buffer body, caller who) {
        (*run)(detail::decode_message<M>(body, "message"), std::move(who));
        co_return byte_buffer();
    }
    static task<void> run_once(request_service* self, std::uint64_t client, entry_ptr e,
                               byte_buffer body, caller who, raw_handler* handler,
                               detail::request_place place);
    /// The call that runs, or nothing: it has been answered. `full`: why it may not begin, if it
    /// may not.
    entry_ptr start_or_join(const detail::request_head& head, byte_buffer body, caller who,
                            raw_handler* handler, waiting_caller from, std::optional<error> full);
    /// Asks the gate, which may put another message behind the head of the request.
    [[nodiscard]] std::optional<error> judge(std::uint16_t number, byte_buffer& request);
    client& client_of(std::uint64_t number);
    void trim(client& c) noexcept;

    struct named_handler {
        std::string name;
        raw_handler run;
        plain_handler at_once; ///< instead of it
    };
    bounds bounds_;
    gate gate_; ///< empty: all that has a handler may be asked for
    std::map<std::uint16_t, named_handler> handlers_;
    std::map<std::uint64_t, std::unique_ptr<client>> clients_;
    std::deque<std::uint64_t> client_order_;
    std::uint64_t generation_ = 0, repeats_ = 0;
    bool forgot_ = false; ///< a client: whoever is not known may have been it
    std::shared_ptr<request_budget> budget_;
    scope tasks_;
};

/// One peer to call and to be called by. Dropping the last handle aborts the link below.
class requests {
public:
    using handle = std::shared_ptr<requests>;

    /// Takes over the handlers of `below`. Without a service every request is refused.
    static handle over(link::handle below, std::shared_ptr<request_service> service = {},
                       request_options options = {});
    static handle over(connection::handle below, std::shared_ptr<request_service> service = {},
                       request_options options = {});
    requests(const requests&) = delete;
    requests& operator=(const requests&) = delete;
    ~requests();

    /// Asks, and waits for the reply. Cancelling it cancels the handler over there.
    ///   errors  of the handler, as it threw them (an exception that is no skein::error:
    ///           remote_exception); not_supported (nobody handles it), malformed (one side cannot
    ///           read the other), timeout, aborted (an older generation, or a repeat whose first
    ///           run may have been forgotten), permission_denied (a key of another process),
    ///           exhausted (a bound of request_options or of the peer's), too_large, the failure of
    ///           the link, cancelled
    template <message Reply, message M>
    task<Reply> call(M what, request_call_options how = {}) {
        auto asking = call_raw(M::number, wire::encode(what), how);
        const byte_buffer body = co_await asking;
        co_return detail::decode_message<Reply>(body, "reply");
    }
    /// Sends without an answer; arrives once or not at all.
    ///   errors  closed, the failure of the link, too_large, exhausted
    template <message M>
    void tell(const M& what, std::uint64_t generation = 0) {
        tell_raw(M::number, wire::encode(what), generation);
    }
    task<byte_buffer> call_raw(std::uint16_t number, byte_buffer body, request_call_options how);
    void tell_raw(std::uint16_t number, byte_buffer body, std::uint64_t generation);

    /// Called once when the link has ended: nullptr = orderly, else why. At once if it has.
    void set_closed_handler(unique_function<void(const error*)> handler);

    /// Orderly end: what runs for the peer is cancelled, the link is closed. Never throws.
    task<void> close();
    void abort(error why) noexcept;

    [[nodiscard]] bool is_open() const noexcept { return open_; }
    [[nodiscard]] const std::string& peer_name() const noexcept;
    /// Calls that wait for their reply, and handlers that run for the peer.
    [[nodiscard]] std::size_t waiting() const noexcept { return calls_.size(); }
    [[nodiscard]] std::size_t running() const noexcept { return running_.size(); }
    /// Bytes of large messages that have not been handed to the network.
    [[nodiscard]] std::size_t bulk_bytes() const noexcept { return bulk_bytes_; }

private:
    friend class request_service;
    using core = std::shared_ptr<requests>;
    struct pending;
    struct served_request {
        cancel_source stop;
        std::shared_ptr<detail::request_entry> once; ///< of a call with a key
    };
    struct transfer {
        std::uint16_t kind = 0; // 0: dropped
        std::uint64_t id = 0;
        byte_buffer body;
        std::size_t at = 0;
        request_hold held{}; ///< of a reply
    };
    struct assembly {
        std::uint16_t kind = 0;
        std::uint64_t id = 0, total = 0, came = 0;
        bool refused = false; ///< the rest comes, and is not kept
        byte_buffer body;
        request_hold held;
    };

    requests(std::unique_ptr<detail::request_wire> below, std::shared_ptr<request_service> service,
             request_options options);
    static handle start(std::unique_ptr<detail::request_wire> below,
                        std::shared_ptr<request_service> service, request_options options);

    void check_open() const;
    void send(std::uint16_t kind, std::uint64_t id, byte_buffer body);
    void send_large(std::uint16_t kind, std::uint64_t id, byte_buffer body);
    [[nodiscard]] request_hold hold(request_hold::field what, std::size_t amount) const;
    [[nodiscard]] std::optional<error> over_budget(request_hold::field what, std::size_t amount,
                                                   bool alone) const;
    [[nodiscard]] std::optional<error> over_budget_to_run(std::size_t bytes) const;
    [[nodiscard]] bool may_call(std::size_t bytes) const noexcept;
    static task<mutex::guard> wait_to_call(requests* self, std::size_t bytes);
    void forget_call_bytes(std::size_t bytes) noexcept;
    void drop_transfer(std::uint64_t id) noexcept;
    static task<void> bulk_lane(core self);
    void send_chunk();

    void on_frame(const frame_view& f);
    void on_chunk(const frame_view& f);
    void keep_piece(byte_span piece);
    void drop_arriving() noexcept;
    [[nodiscard]] bool speaks_for(std::uint64_t client) noexcept;
    void on_message(std::uint16_t kind, std::uint64_t id, byte_buffer body);
    void on_request(std::uint64_t id, byte_buffer body);
    void run_at_once(std::uint64_t id, const detail::request_head& head, byte_span body,
                     request_service::plain_handler& handler);
    void on_answer(std::uint64_t id, bool good, byte_buffer body);
    void refuse(std::uint64_t id, bool one_way, const error& why);
    void tell_unheard(const char* what, const error& why);
    static task<void> run(core self, std::uint64_t id, byte_buffer body, caller who, bool one_way,
                          request_service::raw_handler* handler, cancel_token stop,
                          detail::request_place place);
    [[nodiscard]] detail::request_place place_of(std::size_t bytes) const;
    void answer(std::uint64_t id, const detail::request_outcome& outcome) noexcept;

    void on_end(const error* why) noexcept;
    void spawn(task<void> work);
    static task<void> part(core self, task<void> work);
    void release() noexcept;

    loop& loop_;
    std::unique_ptr<detail::request_wire> below_;
    std::shared_ptr<request_service> service_;
    request_options options_;
    bool open_ = true, ended_ = false;
    std::uint64_t unheard_ = 0; ///< one-way messages that came to nothing
    std::optional<error> failure_;
    detail::closed_news closed_;

    std::uint64_t last_call_ = 0;
    std::map<std::uint64_t, pending*> calls_;
    std::map<std::uint64_t, served_request> running_;

    std::shared_ptr<request_budget> budget_; ///< of the service, or our own
    std::shared_ptr<request_load> held_;     ///< of this peer

    std::deque<transfer> bulk_;
    std::size_t bulk_bytes_ = 0;
    std::size_t call_bytes_ = 0; ///< of them, our own requests
    mutex call_line_;            ///< whoever waits for others of them to end, and those behind
    wait_queue call_ended_;
    bool bulk_runs_ = false;
    std::optional<assembly> arriving_;
    std::uint64_t named_ = 0; ///< the client that speaks on a plain connection

    std::size_t parts_ = 0;
    core self_;
    scope tasks_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/request_lanes.ipp>
#include <skein/net/detail/request_service.ipp>
#include <skein/net/detail/requests.ipp>
#endif
