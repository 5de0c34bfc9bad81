// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ways of train::run(): here, as supervised ranks, in the world of a launcher; and the life of
// a rank that was started for a loop.

#include <skein/core/constants.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/log.hpp>
#include <skein/core/stop_signals.hpp>
#include <skein/core/type_name.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/standard_files.hpp>
#include <skein/program/run_options.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/joined_group.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/run_files.hpp>
#include <skein/spmd/settings.hpp>
#include <skein/spmd/supervisor.hpp>
#include <skein/train/collective.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <skein/wire/json.hpp>

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::train::detail {

SKEIN_INLINE std::string quoted_text(std::string_view text) { return dump_json(json(text)); }

/// What a supervised rank is given.
struct loop_order {
    run_config config;
    byte_buffer arguments;
};
/// What rank 0 gives the others of a launched world.
struct loop_news {
    finished_run how;
    byte_buffer value;
};
/// Keys under which rank 0 tells its supervisor.
inline constexpr const char* note_key = "run";
inline constexpr const char* value_key = "value";

/// One run() of a caller.
struct loop_call {
    loop_record* loop;
    const run_config* config;
    std::string name; ///< of the loop, for people
    byte_buffer arguments;
};

/// "app::loop" of the mangled loop_name<&app::loop>.
[[nodiscard]] SKEIN_INLINE std::string readable_loop(std::string_view mangled) {
    const auto inner = mangled.find("XadL_Z");
    if (inner == std::string_view::npos || !mangled.ends_with("EEEE"))
        return readable_name(std::string(mangled).c_str());
    auto text =
        readable_name(std::string(mangled.substr(inner + 4, mangled.size() - inner - 8)).c_str());
    constexpr std::string_view nameless = "(anonymous namespace)::";
    if (text.starts_with(nameless)) text.erase(0, nameless.size());
    return text.substr(0, text.find('('));
}

/// Once, by whoever comes first: threads may read the environment afterwards.
[[nodiscard]] SKEIN_INLINE spmd::launch_environment place_of_process() {
    static const bool taken = (spmd::take_launch_variables(), true);
    (void)taken;
    return spmd::discover();
}

/// A handler of the program's own is not replaced, and only the main thread may be sure that nobody
/// else takes the signals meanwhile.
[[nodiscard]] SKEIN_INLINE bool may_take_signals() {
    return ::getpid() == ::gettid() && stop_signals::are_free();
}

SKEIN_INLINE void check_size(std::size_t bytes, const std::string& what, const char* hint) {
    if (bytes <= most_loop_bytes) return;
    throw error(errc::too_large,
                fmt::format("{} {} bytes, the limit is {} bytes", what, bytes, most_loop_bytes))
        .with_hint(hint);
}
SKEIN_INLINE void check_value(const loop_value& value, const std::string& loop) {
    check_size(value.bytes.size(), fmt::format("the result of {} is", loop),
               "save it to a file in the loop and return the path");
}

/// With the rank whose failure it is.
[[nodiscard]] SKEIN_INLINE error at_rank(const error& why, int rank, int world_size) {
    if (rank < 0 || world_size == 1 || why.where().starts_with("rank ")) return why;
    const auto place = fmt::format("rank {} of {}", rank, world_size);
    return error(why).with_where(why.where().empty() ? place : place + ": " + why.where());
}

/// What the folder tells; one that cannot be read is no failure of the run.
[[nodiscard]] SKEIN_INLINE finished_run folder_told(const std::optional<run_note>& note) {
    if (!note) return {};
    try {
        return finished_of(*note);
    } catch (const error& why) {
        logging::warn("train", fmt::format("what the run left in {} cannot be read: {}", note->path,
                                           why.what()));
    }
    finished_run out;
    out.name = note->name;
    out.path = note->path;
    return out;
}

/// Rank 0, behind its loop: the file, and what the others are told.
[[nodiscard]] SKEIN_INLINE finished_run close_run(const context& here, const loop_value& value) {
    auto how = folder_told(here.last_run());
    how.world_size = here.world_size();
    note_worlds(here, how);
    how.value_json = value.text;
    if (how.stopped_by.empty() && here.stop_signal() != 0)
        how.stopped_by = proc::signal_name(here.stop_signal());
    write_result(how);
    return how;
}

SKEIN_INLINE void set_failure(loop_end& out, const error& why, int rank, bool writes = true) {
    out.how.failure = at_rank(why, rank, out.how.world_size);
    out.how.failed_rank = rank;
    out.value.clear();
    if (writes) write_result(out.how);
}

// ---- in this process ---------------------------------------------------------------------------

SKEIN_INLINE void run_here(const loop_call& call, loop_end& out) {
    validate(*call.config, 1);
    (void)comm_model_of(*call.config);
    std::optional<stop_signals> stops;
    std::optional<stop_notice> notice;
    if (may_take_signals()) notice.emplace(stops.emplace(), *call.config);
    auto here = context::single();
    if (stops) here.watch_stop_flag(&stops->asked(), [&stops] { return stops->which(); });
    try {
        auto value = call.loop->call(here, *call.config, call.arguments);
        check_value(value, call.name);
        out.how = close_run(here, value);
        out.value = std::move(value.bytes);
    } catch (...) {
        const auto why = to_error(std::current_exception());
        out.how = folder_told(here.last_run());
        if (here.stop_signal() != 0) out.how.stopped_by = proc::signal_name(here.stop_signal());
        set_failure(out, why, 0);
    }
}

// ---- supervised --------------------------------------------------------------------------------

SKEIN_INLINE void run_ranks(const loop_call& call, loop_end& out) {
    auto config = *call.config;
    refuse_in_task(fmt::format("a run with {} workers", to_string(config.scaling.workers)));
    validate(config, config.scaling.workers.most);
    if (!config.scaling.workers.is_fixed())
        throw error(errc::not_supported, fmt::format("not supported: train::run() with {} workers",
                                                     to_string(config.scaling.workers)))
            .with_hint("give it a fixed number, or start the training by train::launch()");
    (void)comm_model_of(config);
    auto options = supervisor_options_of(config);
    if (config.output == output_mode::quiet) options.on_failure = {}; // result.restarts has it
    options.takes_signals = may_take_signals();
    options.variables.emplace_back(spmd::entry_variable, call.loop->mangled);
    const auto asked = run_config().runs_dir;
    if (const auto runs = place_ranks(options, config); !runs.empty() && config.runs_dir == asked)
        config.runs_dir = runs;
    options.given = wire::encode(loop_order{config, call.arguments});
    options.most_told = most_loop_bytes + (std::size_t{64} << 10);
    auto outcome = spmd::supervise(std::move(options));
    std::optional<run_note> note;
    if (const auto told = outcome.told.find(note_key); told != outcome.told.end())
        note = wire::decode<run_note>(told->second).value();
    out.how = folder_told(note);
    out.how.world_size = config.scaling.workers.most;
    out.how.restarts = outcome.restarts;
    if (outcome.stop_signal != 0) out.how.stopped_by = proc::signal_name(outcome.stop_signal);
    auto value = outcome.told.find(value_key);
    if (!outcome.failure && value == outcome.told.end())
        outcome.failure = error(errc::internal, "rank 0 has left without its result");
    if (outcome.failure) return set_failure(out, *outcome.failure, outcome.culprit);
    out.value = std::move(value->second);
}

SKEIN_INLINE int live_in_loop(spmd::rank_entry& entry) {
    auto& loop = static_cast<loop_record&>(entry);
    const auto where = place_of_process();
    const stop_signals stops;
    begin_as_rank(where);
    std::unique_ptr<spmd::joined_group> world;
    run_config config;
    return live_as_rank(where, config, stops, world, [&] {
        spmd::joined_group_options meeting;
        meeting.stop_fd = stops.fd();
        world = std::make_unique<spmd::joined_group>(where, spmd::group_token(), meeting);
        auto order = wire::decode<loop_order>(world->given()).value();
        config = std::move(order.config);
        const spmd::run_files files(config.runs_dir);
        train_as_rank(*world, where, config, &stops, "world", [&](context& here) {
            if (here.is_first())
                here.watch_runs(
                    [&world](const run_note& note) { world->tell(note_key, wire::encode(note)); });
            const auto value = loop.call(here, config, order.arguments);
            if (!here.is_first()) return;
            check_value(value, readable_loop(loop.mangled));
            (void)close_run(here, value);
            world->tell(value_key, value.bytes);
        });
    });
}

// ---- in the world of a launcher ----------------------------------------------------------------

/// The ranks meet in the first run and part when their processes end, so that each further run has
/// them all.
struct launched_world {
    std::atomic<bool> busy{false}; // a run is at work
    int runs = 0;                  // so far
    std::unique_ptr<spmd::joined_group> group;
    std::optional<error> over; // why there is no further run
};

SKEIN_INLINE launched_world& world_of_launch() {
    static auto* const one = new launched_world; // used at exit
    return *one;
}

SKEIN_INLINE void leave_launched_world() noexcept {
    auto& world = world_of_launch();
    if (!world.group) return;
    try {
        if (world.busy.load())
            world.group->fail(error(errc::worker_lost, "it called exit() in a run"));
        else
            world.group->leave();
    } catch (const error&) { // the others know it by now
    }
    world.group.reset();
}

/// Gives the world back.
class claimed_world {
public:
    explicit claimed_world(std::atomic<bool>& busy) noexcept : busy_(&busy) {}
    ~claimed_world() { busy_->store(false); }
    claimed_world(const claimed_world&) = delete;
    claimed_world& operator=(const claimed_world&) = delete;

private:
    std::atomic<bool>* busy_;
};

/// Who was lost first.
class first_loss {
public:
    explicit first_loss(spmd::joined_group& world)
        : heard_(world.on_lost([this](int rank, const error& why) {
              const std::lock_guard lock(mutex_);
              if (!why_) why_.emplace(why);
              rank_ = rank;
          })) {}
    [[nodiscard]] std::pair<int, std::optional<error>> get() {
        const std::lock_guard lock(mutex_);
        return {rank_, why_};
    }

private:
    std::mutex mutex_;
    std::optional<error> why_;
    int rank_ = -1;
    spmd::subscription heard_; // destroyed first
};

/// The loop as a rank, and rank 0's news for all.
SKEIN_INLINE loop_news train_in_launched_world(const loop_call& call,
                                               const spmd::launch_environment& where,
                                               spmd::joined_group& world, int number,
                                               const stop_signals* stops,
                                               std::optional<run_note>& note) {
    byte_buffer mine;
    train_as_rank(
        world, where, *call.config, stops, fmt::format("run-{}", number), [&](context& here) {
            here.watch_runs([&note](const run_note& now) { note = now; });
            auto value = call.loop->call(here, *call.config, call.arguments);
            if (!here.is_first()) return;
            check_value(value, call.name);
            mine = wire::encode(loop_news{close_run(here, value), std::move(value.bytes)});
        });
    const auto all = world.exchange(fmt::format("skein-run-{}-result", number), mine);
    return wire::decode<loop_news>(all.at(0)).value();
}

SKEIN_INLINE void run_in_launched_world(const loop_call& call,
                                        const spmd::launch_environment& where, loop_end& out) {
    auto& world = world_of_launch();
    if (world.busy.exchange(true))
        throw error(errc::not_supported, "not supported: several runs at once under a launcher")
            .with_hint("one after the other, or without the launcher");
    const claimed_world claim(world.busy);
    if (world.over)
        throw error(errc::not_supported,
                    "not supported: another run under a launcher after one that failed")
            .with_cause(world.over->text())
            .with_hint("end the program: the launcher may start its ranks again");
    out.how.world_size = where.world_size;
    std::optional<stop_signals> stops;
    if (may_take_signals()) stops.emplace();
    std::optional<first_loss> loss;
    std::optional<run_note> note;
    try {
        if (!world.group) {
            spmd::joined_group_options meeting;
            if (stops) meeting.stop_fd = stops->fd();
            world.group = std::make_unique<spmd::joined_group>(where, spmd::group_token(), meeting);
            std::atexit([] { leave_launched_world(); });
        }
        loss.emplace(*world.group);
        const int number = world.runs++;
        auto settings = settings_of(*call.config);
        settings.push_back({"loop", call.name});
        fnv1a hash;
        hash.text(as_text(call.arguments));
        settings.push_back({"arguments", fmt::format("{:016x}", hash.value())});
        spmd::require_same(*world.group, fmt::format("skein-run-{}-settings", number), settings);
        validate(*call.config, where.world_size);
        std::optional<stop_notice> notice;
        if (stops && where.rank == 0) notice.emplace(*stops, *call.config);
        auto news = train_in_launched_world(call, where, *world.group, number,
                                            stops ? &*stops : nullptr, note);
        out.how = std::move(news.how);
        out.value = std::move(news.value);
    } catch (...) {
        const auto why = to_error(std::current_exception());
        const bool echo = world.group && is_of_world(why) &&
                          world.group->wait_lost(time_constants::lan().echo_wait);
        if (world.group && !echo) world.group->fail(why);
        const auto [rank, lost] =
            echo && loss ? loss->get() : std::pair(where.rank, std::optional(why));
        loss.reset();
        world.group.reset();
        world.over = lost.value_or(why);
        out.how = folder_told(note);
        out.how.world_size = where.world_size;
        if (stops && stops->which() != 0) out.how.stopped_by = proc::signal_name(stops->which());
        set_failure(out, *world.over, rank, where.rank == 0);
    }
}

// ---- which of them -----------------------------------------------------------------------------

SKEIN_INLINE void refuse_in_rank() {
    if (spmd::is_for_entry())
        throw error(errc::not_supported, "not supported: a run in a rank of a run")
            .with_hint("train with a Trainer on the context of the loop; give the program's other "
                       "runs from main, behind skein::serve_if_worker() as its first line");
    if (spmd::is_supervised())
        throw error(errc::not_supported, "not supported: a run in a rank of launch()")
            .with_hint("a program has either launch() or runs of its own in its main");
}

SKEIN_INLINE void run_where_due(const loop_call& call, loop_end& out) {
    const auto where = place_of_process();
    refuse_in_rank();
    if (const auto only = spmd::find_entry(call.loop->mangled); !only) throw only.error();
    check_size(call.arguments.size(), fmt::format("the arguments of {} are", call.name),
               "save them to a file and give its path");
    if (where.role == spmd::host_role::helps || where.helper_hosts > 0)
        throw error(errc::not_supported, "not supported: hosts that help, with train::run()")
            .with_hint("use train::launch(), or start every host as one that trains");
    say_unused_cluster(where, *call.config);
    if (where.is_launched()) {
        say_unused_workers(where, *call.config);
        return run_in_launched_world(call, where, out);
    }
    if (call.config->scaling.workers == 1) return run_here(call, out);
    run_ranks(call, out);
}

SKEIN_INLINE loop_end run_loop(loop_record& loop, const run_config& config,
                               const std::function<byte_buffer()>& encode) {
    serve_if_worker(); // a main that has not called it: nothing else runs in such a process
    loop_end out;
    try {
        const loop_call call{&loop, &config, readable_loop(loop.mangled), encode()};
        run_where_due(call, out);
    } catch (...) {
        out.how.failure = to_error(std::current_exception());
        out.value.clear();
    }
    return out;
}

} // namespace skein::train::detail
