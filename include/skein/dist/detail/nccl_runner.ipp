// SPDX-License-Identifier: Apache-2.0
#pragma once
// The life of a communicator of NCCL, and how one operation passes.

#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/dist/detail/collective_signature.hpp>
#include <skein/dist/detail/look_pauses.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/core.h>

namespace skein::dist::detail {

SKEIN_INLINE nccl_runner::nccl_runner(std::shared_ptr<nccl_domain> domain, std::string who,
                                      int device, cuda_stream work, duration deadline)
    : domain_(std::move(domain)), who_(std::move(who)), device_(device), work_(work),
      deadline_(deadline) {
    const cuda_runtime& cuda = domain_->cuda();
    cuda_check(cuda, cuda.set_device(device_), fmt::format("cuda:{} current", device_));
    member_ = domain_->enter(device_);
    try {
        // Streams of our own, without an order with the default one.
        cuda_check(cuda, cuda.stream_create(&stream_, cuda_stream_non_blocking), "a stream");
        cuda_check(cuda, cuda.event_create(&ready_, cuda_event_disable_timing), "an event");
        cuda_check(cuda, cuda.event_create(&done_, cuda_event_disable_timing), "an event");
        (void)scratch(64);
    } catch (...) {
        release();
        throw;
    }
}

SKEIN_INLINE nccl_runner::~nccl_runner() {
    if (is_closed_) return;
    // Work may be in flight: what it uses is left to the end of the process.
    abort(error(errc::aborted, fmt::format("{} was destroyed without close()", who_)));
    domain_->leave(member_);
}

SKEIN_INLINE task<void> nccl_runner::join(nccl_unique_id id, int rank, int ranks) {
    const std::string what = fmt::format("a communicator of {} ranks", ranks);
    const time_point until = limit();
    const auto begun = domain_->with(*member_, [&](const nccl_library& nccl, auto& self) {
        nccl_config config;
        config.blocking = 0;
        return nccl.init_rank(&self.comm, ranks, id, rank, &config);
    });
    require(begun, what);
    auto settling = settled(what, until);
    co_await std::move(settling);
}

SKEIN_INLINE time_point nccl_runner::limit() const {
    const time_point now = loop::current().exact_now();
    return deadline_ > time_point::max() - now ? time_point::max() : now + deadline_;
}

SKEIN_INLINE void nccl_runner::use_device() const { (void)domain_->cuda().set_device(device_); }

SKEIN_INLINE void nccl_runner::give_up(error why) {
    domain_->abort_all(why);
    throw domain_->failure(*member_).value_or(why);
}

/// Ends everything, unless the call was a success or goes on.
SKEIN_INLINE void nccl_runner::require(nccl_result outcome, const std::string& what) {
    if (outcome == nccl_result::success || outcome == nccl_result::in_progress) return;
    std::optional<error> why;
    (void)domain_->with(*member_, [&](const nccl_library& nccl, auto& self) {
        why = nccl_error(nccl, outcome, what, self.comm);
        return outcome;
    });
    give_up(std::move(*why));
}

SKEIN_INLINE error nccl_runner::too_late(const std::string& what) const {
    const auto limit = std::chrono::duration<double>(deadline_).count();
    return error(errc::timeout, fmt::format("{} did not end within {:g} s", what, limit))
        .with_cause("NCCL does not say which rank is missing")
        .with_hint("a rank may be lost or slow, or have called something else; NCCL_DEBUG=INFO "
                   "shows what each one does");
}

/// One look at the communicator: throws what has happened to it. Whether its last call is on the
/// stream.
SKEIN_INLINE bool nccl_runner::look(const std::string& what, time_point until) {
    nccl_result state = nccl_result::success;
    const auto asked = domain_->with(*member_, [&](const nccl_library& nccl, auto& self) {
        return self.comm == nullptr ? nccl_result::success : nccl.async_error(self.comm, &state);
    });
    require(asked, what);
    require(state, what);
    if (loop::current().exact_now() >= until) give_up(too_late(what));
    return state == nccl_result::success;
}

SKEIN_INLINE task<void> nccl_runner::settled(std::string what, time_point until) {
    look_pauses pauses;
    while (!look(what, until)) {
        const duration pause = pauses.next();
        if (pause > duration::zero()) co_await sleep_for(pause);
    }
}

SKEIN_INLINE task<void> nccl_runner::reached(std::string what, time_point until) {
    look_pauses pauses;
    const cuda_runtime& cuda = domain_->cuda();
    for (;;) {
        use_device();
        const cuda_result state = cuda.event_query(done_);
        if (state == cuda_result::success) {
            // An aborted kernel ends as one that is done: the communicator knows better.
            if (const auto why = domain_->failure(*member_)) throw *why;
            co_return;
        }
        if (state != cuda_result::not_ready) {
            try {
                cuda_check(cuda, state, what);
            } catch (const error& e) {
                give_up(e);
            }
        }
        (void)look(what, until);
        const duration pause = pauses.next();
        if (pause > duration::zero()) co_await sleep_for(pause);
    }
}

/// Waits until nothing of this communicator is on its stream, for as long as a collective may take.
SKEIN_INLINE task<void> nccl_runner::idle() {
    look_pauses pauses;
    const time_point until = limit();
    while (loop::current().exact_now() < until) {
        use_device();
        if (domain_->cuda().stream_query(stream_) != cuda_result::not_ready) co_return;
        const duration pause = pauses.next();
        if (pause > duration::zero()) co_await sleep_for(pause);
    }
}

SKEIN_INLINE void nccl_runner::begin(const nccl_steps& how) {
    if (const auto why = domain_->failure(*member_)) throw *why;
    use_device();
    const cuda_runtime& cuda = domain_->cuda();
    cuda_check(cuda, cuda.event_record(ready_, work_), "an event on the work stream");
    cuda_check(cuda, cuda.stream_wait_event(stream_, ready_, 0), "a wait for the work stream");
    if (how.before) how.before();
}

SKEIN_INLINE void nccl_runner::put(const std::string& what, const nccl_steps& how) {
    const auto outcome = domain_->with(*member_, [&](const nccl_library& nccl, auto& self) {
        if (!how.is_group) return how.calls(nccl, self.comm);
        const nccl_result opened = nccl.group_start();
        if (opened != nccl_result::success) return opened;
        const nccl_result called = how.calls(nccl, self.comm);
        const nccl_result closed = nccl.group_end();
        return called == nccl_result::success || called == nccl_result::in_progress ? closed
                                                                                    : called;
    });
    require(outcome, what);
}

SKEIN_INLINE void nccl_runner::end(const nccl_steps& how) {
    use_device();
    if (how.after) how.after();
    const cuda_runtime& cuda = domain_->cuda();
    cuda_check(cuda, cuda.event_record(done_, stream_), "an event");
}

SKEIN_INLINE task<void> nccl_runner::run_checked(std::string what, time_point until,
                                                 nccl_steps how) {
    begin(how);
    put(what, how);
    // Only when it says so is the call on the stream; an event before that would be before it.
    auto settling = settled(what, until);
    co_await std::move(settling);
    end(how);
    auto reaching = reached(what, until);
    co_await std::move(reaching);
    // Not before it is reached: several communicators would wait for each other through the work
    // stream, in a cycle where two ranks call them in different orders.
    use_device();
    const cuda_runtime& cuda = domain_->cuda();
    cuda_check(cuda, cuda.stream_wait_event(work_, done_, 0), "a wait for a collective");
}

SKEIN_INLINE task<void> nccl_runner::run(std::string what, nccl_steps how) {
    const time_point until = limit();
    std::optional<error> why;
    try {
        auto running = run_checked(what, until, std::move(how));
        co_await std::move(running);
    } catch (...) {
        why = to_error(std::current_exception());
    }
    if (!why) co_return;
    domain_->abort_all(*why);      // of a cancelled task, too: others wait for it
    auto waiting = shield(idle()); // cancelled or not
    co_await std::move(waiting);
    throw error_at(*why, who_);
}

SKEIN_INLINE task<void> nccl_runner::nothing() {
    if (const auto why = domain_->failure(*member_)) throw error_at(*why, who_);
    co_return;
}

SKEIN_INLINE task<void> nccl_runner::close() {
    if (std::exchange(is_closed_, true)) co_return;
    const time_point until = limit();
    try {
        const auto begun = domain_->with(*member_, [](const nccl_library& nccl, auto& self) {
            return self.comm == nullptr ? nccl_result::success : nccl.finalize(self.comm);
        });
        const std::string what = "the orderly end of a communicator";
        require(begun, what);
        auto settling = settled(what, until);
        co_await std::move(settling);
        (void)domain_->with(*member_, [](const nccl_library& nccl, auto& self) {
            const nccl_comm comm = std::exchange(self.comm, nullptr);
            return comm == nullptr ? nccl_result::success : nccl.destroy(comm);
        });
    } catch (const error& e) {
        domain_->abort_all(e); // what is not over by now is ended
    }
    auto waiting = shield(idle()); // cancelled or not
    co_await std::move(waiting);
    release();
}

/// float32 on the device, for one operation. Nothing is on the stream when a larger one is made.
SKEIN_INLINE buffer_view nccl_runner::scratch(std::size_t elements) {
    const std::size_t bytes = elements * sizeof(float);
    if (bytes > scratch_bytes_) {
        use_device();
        const cuda_runtime& cuda = domain_->cuda();
        if (scratch_ != nullptr) (void)cuda.release(std::exchange(scratch_, nullptr));
        scratch_bytes_ = 0;
        cuda_check(cuda, cuda.allocate(&scratch_, bytes),
                   fmt::format("{} bytes to sum in float32", bytes));
        scratch_bytes_ = bytes;
    }
    return {scratch_, elements, dtype::f32, where()};
}

/// What this communicator has on the device. Nothing of it may be in use.
SKEIN_INLINE void nccl_runner::release() noexcept {
    use_device();
    const cuda_runtime& cuda = domain_->cuda();
    const bool is_idle = stream_ == nullptr || cuda.stream_query(stream_) != cuda_result::not_ready;
    if (is_idle) { // else the device is stuck, and keeps it
        if (scratch_ != nullptr) (void)cuda.release(std::exchange(scratch_, nullptr));
        if (ready_ != nullptr) (void)cuda.event_destroy(ready_);
        if (done_ != nullptr) (void)cuda.event_destroy(done_);
        if (stream_ != nullptr) (void)cuda.stream_destroy(stream_);
    }
    domain_->leave(member_);
}

} // namespace skein::dist::detail
