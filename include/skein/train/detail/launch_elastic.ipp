// SPDX-License-Identifier: Apache-2.0
#pragma once
// launch() of a run whose number of workers is a range.

#include <skein/core/stop_signals.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/elastic_member.hpp>
#include <skein/spmd/elastic_run.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/run_files.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/launch.ipp>
#include <skein/train/detail/world_word.hpp>
#include <skein/train/elastic_place.hpp>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::train::detail {

/// What a worker of an elastic run does when a signal comes: SIGTERM means this worker alone, which
/// leaves; SIGINT, which a terminal sends to all, means the run.
class elastic_signals {
public:
    elastic_signals(const stop_signals& stops, spmd::elastic_member& me)
        : stops_(&stops), me_(&me), control_("signals") {
        control_.run([this] { return begin(); });
    }
    ~elastic_signals() {
        control_.run([this] { return end(); });
    }
    elastic_signals(const elastic_signals&) = delete;
    elastic_signals& operator=(const elastic_signals&) = delete;

    [[nodiscard]] const std::atomic<bool>& stop() const noexcept { return stop_; }

private:
    task<void> begin() {
        watching_ = std::make_unique<scope>();
        watching_->spawn(watch());
        co_return;
    }
    task<void> watch() {
        auto asked = net::wait_readable(control_.loop(), stops_->fd());
        co_await asked;
        if (stops_->which() == SIGINT)
            stop_ = true;
        else
            me_->ask_to_leave("it was told to go by " + proc::signal_name(stops_->which()));
    }
    task<void> end() {
        watching_->cancel();
        auto joined = as_result(watching_->join());
        (void)co_await joined; // nobody waits for a signal any more
        watching_.reset();
    }

    const stop_signals* stops_;
    spmd::elastic_member* me_;
    std::atomic<bool> stop_{false};
    net::loop_thread control_;
    std::unique_ptr<scope> watching_; // lives on the thread
};

/// Trains until this rank is done, or leaves.
SKEIN_INLINE void train_in_worlds(spmd::elastic_member& me, const stop_signals& stops,
                                  const run_config& config, const rank_function& body) {
    dist::comm_options options;
    options.name = "world";
    options.model = comm_model_of(config);
    options.limits.deadline = config.failure.collective_timeout;
    if (const char* name = std::getenv("SKEIN_ADVERTISE")) options.advertise = name;
    elastic_place place(me, options);
    const elastic_signals signals(stops, me);
    world_info info;
    info.host = proc::host_name();
    info.job_id = spmd::process_environment()("SKEIN_JOB_ID").value_or("");
    context here(std::move(info), nullptr, nullptr);
    here.use_options(options);
    here.use_elastic(&place);
    here.watch_stop_flag(&signals.stop(), [] { return SIGINT; });
    body(here);
}

/// A worker of an elastic run, from its start to its end; gives the exit code.
SKEIN_INLINE int run_as_worker(const run_config& config, const rank_function& body) {
    const stop_signals stops;
    proc::print_by_lines(); // it may be killed
    std::unique_ptr<spmd::elastic_member> me;
    try {
        validate(config, config.scaling.workers.most);
        spmd::elastic_member_options options;
        options.settings = settings_of(config);
        options.wait_for_collectives(config.failure.collective_timeout);
        me = std::make_unique<spmd::elastic_member>(std::move(options));
        proc::name_process(fmt::format("worker{}", me->id()));
        const spmd::run_files files(config.runs_dir);
        train_in_worlds(*me, stops, config, body);
        me->leave();
        return me->stop_signal() != 0 ? 128 + me->stop_signal() : exit_code::done;
    } catch (const rank_left&) {
        return exit_code::done;
    } catch (const state_lost&) { // for the job it is a loss: another process begins anew
        proc::leave_last_words("all workers that had the state of the run were lost; it goes on "
                               "from its last checkpoint");
        return exit_code::failed;
    } catch (...) {
        const auto why = to_error(std::current_exception());
        const bool echo = me && is_of_world(why) && me->wait_lost(time_constants::lan().echo_wait);
        if (me && me->stop_signal() != 0 && why.code() == errc::cancelled)
            return 128 + me->stop_signal();
        if (me && !echo) me->fail(why);
        proc::leave_last_words(why.what());
        if (!me) print_error(config, "a worker", why);
        return exit_code_of(why);
    }
}

SKEIN_INLINE spmd::elastic_run_options elastic_options_of(const run_config& config) {
    spmd::elastic_run_options options;
    static_cast<spmd::supervision&>(options) = supervisor_options_of(config);
    options.least = config.scaling.workers.least;
    options.most = config.scaling.workers.most;
    options.times.wait_for_collectives(config.failure.collective_timeout);
    options.silence = config.failure.silence;
    try {
        options.secret = spmd::group_token();
    } catch (const error&) { // then it hears nobody: skein scale says what is wrong with the token
        options.secret = {};
    }
    options.say = [&config](const std::string& line) { say_note(config, line); };
    options.on_failure = [&config, counted = 0](const error& why, int failures, int most) mutable {
        if (failures > most) return; // the job fails, and says why
        const bool is_counted = std::exchange(counted, failures) != failures;
        // Whether the others go on or wait for another one is said by the next view.
        say_note(config, is_counted ? fmt::format("{}; the run goes on (failure {} of {})",
                                                  without_trace(why.what()), failures, most)
                                    : fmt::format("{}; that worker is refused, the run goes on",
                                                  without_trace(why.what())));
    };
    return options;
}

SKEIN_INLINE int run_elastic(const run_config& config) {
    try {
        validate(config, config.scaling.workers.most);
        (void)comm_model_of(config);
        auto options = elastic_options_of(config);
        options.children = find_places(config).children;
        if (options.children) options.job = spmd::process_environment()("SKEIN_JOB").value_or("");
        if (options.children && spmd::own_program_kind() != spmd::program_kind::elastic)
            throw error(errc::usage,
                        fmt::format("{} workers, whose number changes, for a program without a "
                                    "Trainer<Elastic<...>>: a worker that is lost or leaves would "
                                    "end its training",
                                    to_string(config.scaling.workers)))
                .with_hint(fmt::format("a fixed number: --workers {0}, skein job submit --elastic "
                                       "{0}; or train with Elastic<DDP<>>",
                                       config.scaling.workers.most));
        const auto outcome = spmd::run_elastic_host(std::move(options));
        return exit_code_after(config, outcome);
    } catch (...) {
        const auto why = to_error(std::current_exception());
        print_error(config, "", why);
        return exit_code_of(why);
    }
}

} // namespace skein::train::detail
