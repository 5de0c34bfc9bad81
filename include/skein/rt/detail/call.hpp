// SPDX-License-Identifier: Apache-2.0
#pragma once
// One remote call as its submitter sees it, from remote<&f>(...) to its one outcome.
//
//     preparing  an argument is a ref that is not there yet, or an earlier call of the same actor
//                waits
//     queued     complete, waits for a worker                              (did not run)
//     sent       handed to a worker                                        (may have run)
//     started    the worker said that it is in the middle of it            (had started)
//     done       value or failure is there; final
//
// A call is counted (not atomically: everything belongs to one loop). The runtime's slot table
// holds one count from submit to done, refs hold the others.

#include <skein/core/byte_line.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/counted_ptr.hpp>
#include <skein/core/event.hpp>
#include <skein/core/frame_pool.hpp>
#include <skein/core/ids.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/wait.hpp>
#include <skein/rt/detail/call_context.hpp>
#include <skein/rt/options.hpp>
#include <skein/rt/registry.hpp>
#include <skein/rt/remote_error.hpp>
#include <skein/sched/demands.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <concepts>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace skein::net {
struct frame_view;
}
namespace skein::objects {
class object;
class reading;
} // namespace skein::objects

namespace skein::rt {

struct peer;

/// A call on its way between two peers, unique among those of its submitter that have no outcome
/// yet.
using slot_id = strong_id<struct slot_tag>;

namespace detail {

/// Any callable that takes a To&, borrowed for one call of a function.
template <class To>
class borrowed {
public:
    template <class F>
        requires(std::is_invocable_v<F&, To&>)
    borrowed(F&& work) noexcept // NOLINT: F is borrowed, not taken
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(work)))),
          call_([](void* o, To& to) { (*static_cast<std::remove_reference_t<F>*>(o))(to); }) {}
    void operator()(To& to) const { call_(object_, to); }

private:
    void* object_;
    void (*call_)(void*, To&);
};

class call_base;
/// What appends arguments or a result to a message.
using encoder = borrowed<wire::writer>;
/// What ends a call of this process with a value.
using finisher = borrowed<call_base>;

enum class phase : std::uint8_t { preparing, queued, sent, started, done };
enum class call_kind : std::uint8_t { task, method, create };

class actor_queue;

/// Suspended until a call is done and its value can be read.
class value_waiter : public waiter {
public:
    std::shared_ptr<const objects::reading> bytes; ///< of a value that is an object
};

/// Arguments of a call that cannot be encoded yet because some are pending refs.
class deferred_arguments {
public:
    virtual ~deferred_arguments() = default;
    virtual void encode(wire::writer& to) = 0;
    /// The failure of a ref among them, if one failed.
    [[nodiscard]] virtual const failure* failed() const noexcept = 0;
    /// Those that are objects, which must be read before they are encoded.
    virtual void unread(const call_base& call, std::vector<counted_ptr<call_base>>& into) const = 0;
};

/// Credit: calls that were sent and have not begun, and their bytes. Used in runtime_credits.ipp.
struct credit_line {
    std::uint32_t number = 1; ///< what was taken from an older line is not given back to this one
    std::uint32_t calls = 0;
    std::uint64_t bytes = 0;

    void take(std::uint32_t n) noexcept {
        ++calls;
        bytes += n;
    }
    void give(std::uint32_t n) noexcept {
        --calls;
        bytes -= n;
    }
};

/// What a call has of the credit of a line.
struct credit_taken {
    std::uint32_t line = 0; ///< its number; 0: nothing
    std::uint32_t bytes = 0;
};

/// The part of a call that knows nothing of its result type.
class call_base : public list_node<call_base> {
public:
    /// What few calls have; in detail/call_rarities.hpp.
    struct rarities;
    struct free_rarities {
        void operator()(rarities* r) const noexcept;
    };

    call_base() noexcept {}
    call_base(const call_base&) = delete;
    call_base& operator=(const call_base&) = delete;
    virtual ~call_base();

    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) delete this;
    }
    [[nodiscard]] std::uint32_t uses() const noexcept { return uses_; }

    // Calls are made and freed a million times a second.
    static void* operator new(std::size_t bytes) {
        return skein::detail::frame_pool::allocate(bytes);
    }
    static void operator delete(void* p, std::size_t bytes) noexcept {
        skein::detail::frame_pool::release(p, bytes);
    }

    [[nodiscard]] bool is_done() const noexcept { return state == phase::done; }
    [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
    [[nodiscard]] const failure& why() const noexcept { return *failure_; }
    /// How errors call it.
    [[nodiscard]] std::string name() const;
    /// How far it got, for errors.
    [[nodiscard]] const char* progress() const noexcept;

    /// Ends the call with the encoded value, or with an error if the bytes are bad.
    void finish_with_bytes(byte_span value);
    /// Ends it with a value that is an object, which this process holds.
    void finish_with_object(const std::shared_ptr<const objects::object>& value);
    void fail(failure why);
    /// The value comes when the call is done, of the runtime whose it was. Who has sent it counts
    /// what is in it as held here.
    virtual void give_back(runtime&, byte_span) {}
    /// Of a stream: an item has come. Throws what its sender should not have sent.
    virtual void take_item(const net::frame_view&) {}
    /// It runs once more: what has come of it so far is nothing.
    virtual void begin_again() {}

    // A value that is an object lies in the store, perhaps in a file, until somebody reads it.

    /// It must be read before it can be copied, which has not failed yet.
    [[nodiscard]] bool is_unread() const noexcept;
    /// The same, also if that has failed before.
    [[nodiscard]] bool must_be_read() const noexcept {
        return rare != nullptr && object_must_be_read();
    }
    /// Reads it for those who wait for it, and for calls that take it.
    void read_value();
    /// Its bytes.
    ///   errors  why they cannot be read
    [[nodiscard]] std::shared_ptr<const objects::reading> bytes_of_object() const;

    rarities& extra();
    /// A handle that must live until the call is done.
    void keep(std::shared_ptr<void> handle);
    /// A call that takes this one's ref.
    void add_dependent(counted_ptr<call_base> call);

    intrusive_list<waiter, waiter> waiters;
    runtime* owner = nullptr; ///< nullptr: the runtime is gone, or the call is done
    const function_record* fn = nullptr;
    peer* on = nullptr; ///< where it was sent
    slot_id slot;
    std::uint64_t number = 0; ///< of its call_id, in the runtime's incarnation
    std::uint64_t order = 0;  ///< among the calls that were sent to `on`
    counted_ptr<call_context>
        parent; ///< the call that made it: it is linked there until it is done
    actor_id target;
    counted_ptr<actor_queue> queue; ///< the handle it was called through
    // Not beside the small fields below: compilers zero those with stores that overlap their
    // neighbour, and a read of what two stores have written waits until both are in the cache. This
    // one is read at once.
    std::unique_ptr<rarities, free_rarities> rare;
    byte_buffer body; ///< encoded arguments while they have to be kept
    phase state = phase::preparing;
    call_kind kind = call_kind::task;
    std::uint8_t retries_left = 0;
    bool nested = false; ///< submitted by a worker: goes before the calls of the driver
    bool direct = false; ///< made by a worker, and counted as one that its driver does not know of
    bool held = false;   ///< it waits at its worker, behind a start_gate
    bool is_spent = false; ///< items of it have been taken: it does not run again
    /// Not 0: a worker died while it ran. It waits for a worker with nothing to do, so many times
    /// at most, and nothing is sent behind it.
    std::uint8_t alone = 0;
    static constexpr std::uint8_t most_passes = 255;
    std::uint16_t cpus = 0;          ///< cores it counts for on its worker, rounded up
    sched::demand_id demand;         ///< all that it needs
    std::uint16_t lost_attempts = 0; ///< times it was sent to a worker that died: it may have run
    credit_taken taken;              ///< until its worker has begun it
    std::uint32_t kept =
        0; ///< bytes of its arguments in its queue's `arguments`; 0: they are in `body`

protected:
    virtual result<void> take_value(byte_span value) = 0;
    virtual result<void> take_object(const std::shared_ptr<const objects::object>& value);
    virtual void take_failure(const failure&) {}
    /// It is there itself, not in an object alone.
    [[nodiscard]] virtual bool has_value() const noexcept { return false; }
    /// read_value() has ended.
    virtual void on_read() {}
    virtual void on_finished() {}
    void finished();
    std::uint32_t watchers_ = 0; ///< refs and awaiters: those who may look at the outcome

private:
    void tell_unseen() const noexcept;
    void release_dependents();
    [[nodiscard]] bool object_must_be_read() const noexcept;
    void wake_waiters();
    void value_was_read(result<std::shared_ptr<const objects::reading>> got);

    std::uint32_t uses_ = 0;
    std::unique_ptr<failure> failure_;
};

/// Calls of the methods that share a start_gate.
struct gate_line {
    credit_line held;                             ///< wait at the worker, for the gate is full
    std::deque<counted_ptr<call_base>> waiting{}; ///< wait here while too many wait there
};

/// A caller's view of one actor: its id, and the calls that wait for their turn. Calls leave in the
/// order in which they were made, also when the argument of an earlier one is not there yet.
class actor_queue {
public:
    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) last_use_gone();
    }

    runtime* owner = nullptr;
    actor_id id;
    std::string name{};                          ///< "": it has none, or it is not known here
    const std::type_info* type = nullptr;        ///< of its handles here; nullptr: there was none
    peer* on = nullptr;                          ///< where its calls go
    std::vector<counted_ptr<call_base>> waiting; ///< in order; [first_, end)
    std::size_t first = 0;
    byte_line arguments;         ///< of those in `waiting` that say so, in their order
    std::optional<failure> lost; ///< why it is gone
    bool moving = false;         ///< it is being made, or made again: its calls wait
    bool asked = false;          ///< worker: the driver is to say where it is; `moving` till then
    bool by_driver = false;   ///< worker: a plain function called it, which cannot wait for a way
    bool lasts = false;       ///< its calls keep their arguments
    bool is_detached = false; ///< it needs nobody who holds it
    std::uint32_t pending = 0, max_pending = 0; ///< calls without an outcome; 0: any number
    credit_line credit;
    std::uint32_t returned = 0; ///< calls whose credit has come back since `waiting` was looked at
    std::uint32_t ended = 0;    ///< about so many of `waiting` are done
    std::vector<gate_line> gates;       ///< by number, as far as calls have waited for one
    std::unique_ptr<event> credit_came; ///< set for a moment; made when somebody waits for it
    /// Linked when credit has come back in this turn of the loop: at its end more is sent.
    struct sending : turn_hook {
        explicit sending(actor_queue& of) noexcept : turn_hook(&sending::go), queue(of) {}
        static void go(turn_hook& self);
        actor_queue& queue;
    } sends{*this};

    [[nodiscard]] bool has_waiting() const noexcept {
        if (first != waiting.size()) return true;
        for (const auto& gate : gates)
            if (!gate.waiting.empty()) return true;
        return false;
    }

private:
    void last_use_gone() noexcept;
    std::uint32_t uses_ = 0;
};

/// Keeps what the options of a call say. Those that mean nothing fail it when it is submitted.
void keep_options(runtime& by, call_base& call, const call_options& how);
/// Fills in what all calls have in common. Most calls of methods have no options.
inline void apply_options(runtime& by, call_base& call, const function_record& fn,
                          const call_options& how, call_kind kind) {
    call.fn = &fn;
    call.kind = kind;
    if (kind == call_kind::task || !how.retry_on.empty() || !how.name.empty() ||
        how.deadline != no_deadline)
        keep_options(by, call, how);
}
/// Failures after which a task runs again, as failures::text() has them. Others fail the call when
/// it is submitted.
void keep_failures(call_base& call, std::string_view text);
/// A handle in a message: the actor's number and its .max_pending, and of one in another namespace
/// than that of who gets it, where that is. In arguments it keeps the actor until the call is done,
/// in a result until who gets it has it.
///   errors  not_supported: who gets it cannot reach the actor
void encode_handle(wire::writer& to, const counted_ptr<actor_queue>& queue);
/// Decoded while a call runs on a runtime, in results, and in what load() takes. Null: an empty
/// one.
[[nodiscard]] result<void> decode_handle(wire::reader& from, counted_ptr<actor_queue>& into);
/// What travels in front of the bounds of .max_pending.
inline constexpr std::uint32_t detached_handle = 1U << 31, foreign_handle = 1U << 30,
                               most_pending = foreign_handle - 1;
/// The runtime that a handle's calls go through; checks that there is one.
[[nodiscard]] runtime& runtime_of(const counted_ptr<actor_queue>& queue);

} // namespace detail
} // namespace skein::rt
