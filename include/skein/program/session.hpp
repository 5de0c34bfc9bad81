// SPDX-License-Identifier: Apache-2.0
#pragma once
// session: a driver for programs whose threads are no coroutines: a plain main, a thread pool, a
// rank that trains.
//
//     int main(int argc, char** argv) {
//         skein::session cluster(argc, argv);              // in a worker it does not return
//         auto p = cluster.submit<&square>(7);             // on any thread
//         // blocks; the handle is for any thread, too
//         auto c = cluster.actor<counter>(10);
//         auto q = c.call<&counter::add>(5);
//         int n = cluster.get(p) + cluster.get(q);
//         auto w = cluster.put(weights);                   // an argument of many calls
//         // a task on the driver's loop, which may do all that run()'s may
//         cluster.run([] { return app(); });
//     }                                                    // workers leave
//
// The driver's loop has a thread of its own. Options come before the call, as elsewhere:
// remote<&f>.with({...}).on(cluster)(7), remote<&counter::add>.with({...})(c, 5),
// actor<counter>.with({...}).on(cluster)(10).

#include <skein/net/loop_thread.hpp>
#include <skein/program/detail/session_call.hpp>
#include <skein/program/pending.hpp>
#include <skein/program/run_options.hpp>
#include <skein/rt/actor.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein {

/// A counted handle to an actor of type T that threads share; also an argument of calls.
template <class T>
class shared_actor {
public:
    using actor_type = T;
    /// As an argument: what it is on the loop.
    using shared_with_threads = actor_handle<T>;

    shared_actor() noexcept = default;
    explicit shared_actor(std::shared_ptr<program::detail::actor_cell> cell) noexcept
        : cell_(std::move(cell)) {}

    /// False if default-constructed or moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(cell_); }
    /// Which actor; the same in all processes of one run.
    [[nodiscard]] actor_id id() const noexcept { return cell_ ? cell_->id : actor_id{}; }
    /// For `.on`: the node where the actor is.
    operator location() const noexcept {
        return location::beside(id());
    } // NOLINT: reads as it is meant

    /// Submits a call of a method from any thread. Calls that one thread makes through one handle,
    /// or copies of it, run in the order in which they were made. The pending may be dropped.
    template <auto M, class... A>
    auto call(A&&... args) const {
        return submit<M>({}, std::forward<A>(args)...);
    }
    /// The same with options: remote<&T::m>.with({...})(actor, args...) calls it.
    template <auto M, class... A>
    auto call_with(const call_options& how, A&&... args) const {
        using owned = rt::detail::owned_options<call_options>;
        return submit<M>(program::detail::kept_options<call_options>(owned(how)),
                         std::forward<A>(args)...);
    }
    /// Copies of one handle are equal.
    friend bool operator==(const shared_actor&, const shared_actor&) = default;

    /// What its copies share.
    [[nodiscard]] const std::shared_ptr<program::detail::actor_cell>& cell() const noexcept {
        return cell_;
    }

private:
    template <auto M, class... A>
    auto submit(program::detail::kept_options<call_options> how, A&&... args) const {
        static_assert(std::is_member_function_pointer_v<decltype(M)>,
                      "skein: call<&T::m> needs a member function of the actor's own type");
        SKEIN_CHECK(cell_, "a method is called through an empty shared_actor");
        return program::detail::submit_from_thread<M, T>(cell_->door, std::move(how), cell_,
                                                         std::forward<A>(args)...);
    }
    std::shared_ptr<program::detail::actor_cell> cell_;
};

/// Ends an actor at once, from any thread: see kill(const actor_handle&).
template <class T>
void kill(const shared_actor<T>& actor) {
    if (actor)
        (void)actor.cell()->door->post([cell = actor.cell()] {
            if (cell->queue) rt::detail::runtime_of(cell->queue).kill_actor(cell->id);
        });
}

/// A driver on a thread of its own, and its workers. Its members may be called from any thread but
/// that one, at the same time; it is made and destroyed by one. A program may have several, one
/// after the other or at once.
class session {
public:
    /// What run() does with a command line: --workers, --address, SKEIN_ADDRESS and so on; what is
    /// left is arguments(). As a worker, a head or a node this process lives here and exits:
    /// nothing that follows is done there. Signals are the program's: none is caught.
    ///   errors  usage and those of the roles; of an address that nobody answers the first call
    ///           tells
    session(int argc, char** argv, run_options how = {});
    /// The same without a command line.
    explicit session(run_options how = {});
    session(const session&) = delete;
    session& operator=(const session&) = delete;
    /// close(). Not on the session's own thread: that ends the program.
    ~session();

    /// The command line without the program and without skein's flags.
    [[nodiscard]] const std::vector<std::string>& arguments() const noexcept { return arguments_; }

    /// Submits a call of F and returns at once; the arguments are those of remote<F>, or pendings
    /// of this session.
    ///   errors  none here: pending::get() has them
    template <auto F, class... A>
    [[nodiscard]] auto submit(A&&... args) {
        return program::detail::submit_from_thread<F, void>(door_, {}, nullptr,
                                                            std::forward<A>(args)...);
    }
    /// The outcome of a call: blocks this thread. See pending::get().
    template <class T>
    T get(pending<T> one) {
        return std::move(one).get();
    }
    /// All of them, in their order; the first error is thrown.
    template <class T>
        requires(!std::is_void_v<T>)
    std::vector<T> get(std::vector<pending<T>> many) {
        std::vector<T> out;
        out.reserve(many.size());
        for (auto& one : many) out.push_back(std::move(one).get());
        return out;
    }

    /// Stores a value for many calls, as skein::put does; blocks until it is there. The pending is an
    /// argument, and done.
    ///   errors  those of skein::put; closed; invalid_argument: on the session's own thread
    template <class V>
    [[nodiscard]] pending<std::remove_cvref_t<V>> put(V&& value) {
        using T = std::remove_cvref_t<V>;
        if constexpr (rt::detail::check_put<T>()) {
            auto object = run([&value] {
                return program::detail::put_to_read<T>(&rt::runtime::current(), &value);
            });
            return program::detail::put_from_thread<T>(door_, std::move(object),
                                                       std::forward<V>(value));
        }
    }

    /// Makes an actor; blocks until its constructor has returned. Errors as of skein::actor<T>, and
    /// closed.
    template <class T, class... A>
    [[nodiscard]] shared_actor<T> actor(A&&... args) {
        return make<T>({}, std::forward<A>(args)...);
    }
    /// The actor of that name; blocks. Errors as of skein::get_actor<T>, and closed.
    template <class T>
    [[nodiscard]] shared_actor<T> get_actor(std::string_view name) {
        return run([name] { return skein::get_actor<T>(name); });
    }

    /// Calls f() on the session's thread; f returns a task, which is run to its end there. Blocks
    /// this thread. What f refers to lives until then. The task may do all that an app of run()
    /// may.
    ///   result  the task's value; an actor_handle comes out as a shared_actor
    ///   errors  those of f and the task; closed: the session ended, and the task was cancelled;
    ///           invalid_argument: on the session's own thread
    template <class F>
        requires(rt::detail::unwrap_task<std::invoke_result_t<F&>>::is_coroutine)
    auto run(F f) {
        using T = typename std::invoke_result_t<F&>::value_type;
        if constexpr (program::detail::check_shared_result<T>()) {
            door_->refuse_inside("run()");
            return thread().run([this, &f] { return visit<T>(this, &f); });
        }
    }
    /// The same for a task that has not begun. A task that begins with a call that its maker makes
    /// (actor<T>(...)) needs the other form.
    template <class T>
    auto run(task<T> work) {
        return run([&work] { return std::move(work); });
    }

    /// Ends it: calls without an outcome fail with closed, threads that wait for one wake, tasks of
    /// run() are cancelled, workers leave. Blocks until all of that is done; nothing happens the
    /// second time.
    ///   errors  invalid_argument: on the session's own thread
    void close();

    /// What its pendings and handles share with it.
    [[nodiscard]] const std::shared_ptr<program::detail::session_door>& door() const noexcept {
        return door_;
    }

private:
    template <class T>
    friend class session_actor_maker;
    class impl;
    /// Counts a task of run().
    class visitor {
    public:
        explicit visitor(session& to);
        visitor(const visitor&) = delete;
        visitor& operator=(const visitor&) = delete;
        ~visitor();
        [[nodiscard]] cancel_token until_closed() const noexcept;

    private:
        impl& to_;
    };

    template <class T, class F>
    static task<typename program::detail::shared_result<T>::type> visit(session* self, F* f) {
        const visitor here(*self);
        try {
            auto work = with_cancel(here.until_closed(), (*f)());
            if constexpr (rt::detail::is_of_a_loop<T>) {
                using shared = typename program::detail::shared_result<T>::type;
                const auto handle = co_await work;
                if (!handle) co_return shared();
                co_return shared(self->door_->adopt(handle.queue()));
            } else {
                co_return co_await work;
            }
        } catch (const error& e) {
            if (e.code() == errc::cancelled && here.until_closed().requested())
                throw program::detail::session_closed(nullptr, "of session::run() did not end");
            throw;
        }
    }
    template <class T, class... A>
    shared_actor<T> make(const actor_options& how, A&&... args) {
        return run([&] {
            return rt::detail::make_actor<T>(how, program::detail::bring_in<A>(args, *door_)...);
        });
    }
    void open(int argc, char** argv, run_options how);
    [[nodiscard]] net::loop_thread& thread() noexcept;

    std::vector<std::string> arguments_;
    std::unique_ptr<impl> impl_;
    std::shared_ptr<program::detail::session_door> door_;
};

/// remote<&f>.with({...}).on(session): call it like f, from any thread.
template <auto F>
class session_function {
public:
    session_function(session& by, rt::detail::owned_options<call_options> how)
        : door_(by.door()), how_(std::move(how)) {}

    /// Submits the call and returns at once.
    template <class... A>
        requires(!rt::detail::signature<
                 decltype(F)>::is_member) // remote<&T::m>.with({...})(actor, args...)
    [[nodiscard]] auto operator()(A&&... args) const {
        return program::detail::submit_from_thread<F, void>(
            door_, program::detail::kept_options<call_options>(how_), nullptr,
            std::forward<A>(args)...);
    }

private:
    std::shared_ptr<program::detail::session_door> door_;
    rt::detail::owned_options<call_options> how_;
};

/// actor<T>.with({...}).on(session): call it with the constructor's arguments, from any thread.
template <class T>
class session_actor_maker {
public:
    session_actor_maker(session& by, rt::detail::owned_options<actor_options> how) noexcept
        : by_(by), how_(std::move(how)) {}

    /// Makes the actor; blocks until its constructor has returned.
    template <class... A>
    [[nodiscard]] shared_actor<T> operator()(A&&... args) const {
        return by_.make<T>(*how_, std::forward<A>(args)...);
    }

private:
    session& by_;
    rt::detail::owned_options<actor_options> how_;
};

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/program/detail/session.ipp>
#endif
