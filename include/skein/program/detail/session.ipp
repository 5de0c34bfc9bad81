// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of program/session.hpp: a driver on a thread of its own, from its first call to its
// end.

#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/log.hpp>
#include <skein/core/scope.hpp>
#include <skein/program/detail/driver.hpp>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>

namespace skein {

/// What outlives the driver, and the driver, which is the loop's.
class session::impl {
public:
    explicit impl(program::detail::driver_plan plan) : plan_(std::move(plan)) {}
    impl(const impl&) = delete;
    impl& operator=(const impl&) = delete;

    std::shared_ptr<program::detail::session_door> open(const run_options& how) {
        thread.run([&] { return begin(&how); });
        return door_;
    }
    void close() {
        const std::lock_guard one_at_a_time(closing_);
        door_->close();
        thread.run([this] { return end(); });
    }

private:
    program::detail::driver_plan plan_; // a job that it leads ends last

public:
    net::loop_thread thread{"skein-driver"};

    // All below are the loop's.
    std::size_t visitors = 0;
    event nobody;
    cancel_source stop;

private:
    struct life {
        life(net::real_loop& on, const program::detail::driver_plan& plan, const run_options& how)
            : driver(on, plan, how) {}
        program::detail::driver driver;
        event over;
        scope driving;
    };

    task<void> begin(const run_options* how) {
        life_ = std::make_unique<life>(thread.loop(), plan_, *how);
        door_ =
            std::make_shared<program::detail::session_door>(thread.loop(), life_->driver.self());
        life_->driving.spawn(drive(this));
        co_return;
    }
    /// What the driver has for an app.
    static task<int> stay(impl* self) {
        auto over = self->life_->over.wait();
        co_await over;
        self->door_->drop_handles(); // as an app's, before the goodbye
        co_return exit_code::done;
    }
    static task<void> drive(impl* self) {
        auto driving = self->life_->driver.drive(stay(self));
        auto ended = as_result(std::move(driving));
        if (const auto code = co_await ended; !code)
            logging::warn("rt", "a session ended with an error", {{"why", code.error().what()}});
    }

    task<void> end() {
        if (!life_) co_return;
        stop.request();
        while (visitors != 0) {
            nobody.reset();
            auto left = nobody.wait();
            co_await left;
        }
        life_->over.set();
        auto joined = life_->driving.join();
        co_await joined;
        door_->shut();
        // What threads have given back until now is in the loop's line ahead of this.
        event drained;
        thread.loop().post_from_any_thread([&drained] { drained.set(); });
        auto all = drained.wait();
        co_await all;
        life_.reset();
    }

    std::mutex closing_; // closers take turns
    std::shared_ptr<program::detail::session_door> door_;
    std::unique_ptr<life> life_;
};

SKEIN_INLINE session::session(int argc, char** argv, run_options how) {
    open(argc, argv, std::move(how));
}
SKEIN_INLINE session::session(run_options how) { open(0, nullptr, std::move(how)); }

SKEIN_INLINE void session::open(int argc, char** argv, run_options how) {
    auto plan = program::detail::plan_driver(argc, argv, how, false);
    if (plan.exit_code) std::exit(*plan.exit_code); // what follows is the driver's, as in workers
    arguments_ = std::move(plan.rest);
    impl_ = std::make_unique<impl>(std::move(plan));
    door_ = impl_->open(how);
}

SKEIN_INLINE session::~session() {
    SKEIN_CHECK(!door_->is_inside(), "a session is destroyed on its own thread, which would wait "
                                     "for itself: destroy it where it was made");
    impl_->close();
}

SKEIN_INLINE void session::close() {
    door_->refuse_inside("close()");
    impl_->close();
}

SKEIN_INLINE net::loop_thread& session::thread() noexcept { return impl_->thread; }

SKEIN_INLINE session::visitor::visitor(session& to) : to_(*to.impl_) {
    if (to_.stop.requested())
        throw program::detail::session_closed(nullptr, "of session::run() did not begin");
    ++to_.visitors;
}
SKEIN_INLINE session::visitor::~visitor() {
    if (--to_.visitors == 0) to_.nobody.set();
}
SKEIN_INLINE cancel_token session::visitor::until_closed() const noexcept {
    return to_.stop.token();
}

} // namespace skein
