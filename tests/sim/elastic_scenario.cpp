// SPDX-License-Identifier: Apache-2.0
// elastic: the coordinator of an elastic job, its keepers and the control side of its ranks, with
// their real code, over simulated processes, sockets and a simulated view register. Steps are
// modelled: a row that all ranks of a view exchange, then applied, then committed. Ranks are
// killed, stand still, leave, exit and join; starts fail, hang and are slow; links break; the
// register is slow, away, and loses answers.
//
// Invariants: views form one chain, each made of the one before, of workers that live, with
// everybody who lives and did not leave; no id is used twice; only the newest view has progress;
// the ranks of a world that works have the same state; no step is applied again, and no run begins
// again, while a rank lives that has applied it; losses are counted as they are; the job ends, well
// or for a reason that was put there, and no process is left.
//
// elastic_places: the same where workers wait for places and are asked to give them back: nobody
// leaves for that where too few would stay, and whoever may leave does so between two steps.
#include "sim/placed_later.hpp"
#include "sim/scenario.hpp"

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/sim/children.hpp>
#include <skein/spmd/detail/elastic_client.hpp>
#include <skein/spmd/detail/elastic_protocol.hpp>
#include <skein/spmd/elastic_coordinator.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/local_keeper.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/memory_register.hpp>
#include <skein/train/detail/world_word.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace elastic_world {

using namespace skein;
using namespace std::chrono_literals;
using train::detail::step_end;
using train::detail::world_word;

/// Where a rank may die by itself.
enum class point : std::uint8_t { start, ask, words, copy, row, apply, commit, goodbye };
constexpr std::size_t points = 8;

/// What a rank is to do, of the driver.
enum class order : std::uint8_t { none, exit_early, fail };

/// A rank's state, as everybody may look at it.
struct rank {
    std::uint64_t id = 0;
    std::int64_t pid = 0;
    bool has_state = false, is_torn = false;
    bool was_dropped = false; ///< no view has it, or it has ended its work
    std::uint64_t step = 0;   ///< of which all was done, but for `end`
    bool applied = false;     ///< the step behind it
    step_end end = step_end::nothing;
    std::uint64_t state = 0;
    order todo = order::none;
    spmd::detail::elastic_client* client = nullptr;
    [[nodiscard]] std::uint64_t reached() const { return step + (applied ? 1 : 0); }
};

/// What was stored last.
struct checkpoint {
    std::uint64_t step = 0, state = 1;
};

/// The first application of a step, by the view that did it.
struct applied_step {
    std::uint64_t generation = 0, state = 0;
};

/// What one world of a rank is made of; on the wire.
struct row {
    std::uint64_t step = 0, state = 0, gradient = 0;
    bool change = false, stop = false;
};
struct copied {
    std::uint64_t step = 0, state = 0;
    step_end end = step_end::nothing;
};

struct history {
    sim::world* w = nullptr;
    sim::children* children = nullptr; ///< of the host whose pid it is
    std::map<std::uint64_t, rank*> living;
    std::set<std::uint64_t> ids;  ///< that were ever used
    std::set<std::uint64_t> done; ///< of those whose work was done
    std::map<std::uint64_t, applied_step> steps;
    std::uint64_t newest_progress = 0; ///< a generation
    checkpoint disk;
    std::uint64_t total = 0;    ///< steps of the training
    double deadly[points] = {}; ///< rates
    std::vector<spmd::setting> settings;
    double odd = 0; ///< of workers: they differ from the others
    bool calm = false;
    std::string violation;

    void blame(std::string what) {
        if (violation.empty()) violation = std::move(what);
    }
};
thread_local history* now = nullptr;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    fnv1a h;
    h.number(a);
    h.number(b);
    return h.value();
}

// ---- invariants of the state --------------------------------------------------------------------

/// A rank applies a step in a view.
void note_applied(const rank& by, std::uint64_t generation) {
    const auto step = by.reached();
    if (generation < now->newest_progress && by.was_dropped) return; // it stood still, and leaves
    if (generation < now->newest_progress)
        now->blame(fmt::format("worker {} applies step {} in view {}, view {} has progress", by.id,
                               step, generation, now->newest_progress));
    now->newest_progress = std::max(now->newest_progress, generation);
    const auto found = now->steps.find(step);
    if (found != now->steps.end() && found->second.generation == generation) {
        if (found->second.state != by.state)
            now->blame(fmt::format("step {} was applied differently within a view", step));
        return;
    }
    for (const auto& [id, other] : now->living) {
        if (id != by.id && !other->was_dropped && other->has_state && other->reached() >= step)
            now->blame(
                fmt::format("step {} is applied again, worker {} lives and has done it", step, id));
    }
    now->steps.erase(found, now->steps.end()); // they were lost with all that had them
    now->steps[step] = {generation, by.state};
}

/// A world works: nothing is behind what a living rank has.
void note_works(const rank& in) {
    for (const auto& [id, other] : now->living) {
        if (other->was_dropped || !other->has_state || other->reached() <= in.reached()) continue;
        now->blame(fmt::format("a world works at step {}, worker {} lives and has applied {}",
                               in.reached(), id, other->reached()));
    }
}

/// Nobody that is still needed has more than what was stored.
void note_begins(const rank& in) {
    for (const auto& [id, other] : now->living) {
        if (other->reached() <= now->disk.step) continue;
        if (id != in.id && !other->was_dropped && other->has_state)
            now->blame(fmt::format("the run begins again, worker {} lives and has its state", id));
    }
}

// ---- a worker -----------------------------------------------------------------------------------

struct exits {
    int code = 0;
};

bool is_of_world(errc code) {
    return code == errc::peer_lost || code == errc::aborted || code == errc::cancelled ||
           code == errc::closed || code == errc::reset || code == errc::timeout;
}

class worker {
public:
    explicit worker(sim::process* self) : process_(self), w_(*now->w) {
        auto boot = wire::decode<std::map<std::string, std::string>>(self->started_with().message);
        auto& variables = boot.value();
        mine_.id = std::stoull(variables.at(spmd::elastic_id_variable));
        mine_.pid = self->pid();
        how_.id = mine_.id;
        how_.pid = mine_.pid;
        how_.host = self->host();
        how_.door = net::address::parse(variables.at(spmd::elastic_variable)).value();
        how_.secret = net::token::from_hex(variables.at(spmd::token_variable)).value();
        how_.settings = now->settings;
        how_.join_deadline = 10s;
        is_odd_ = now->ids.size() > 1 && w_.chance(now->odd);
        if (is_odd_ && w_.chance(0.5)) how_.settings[0].value = "2";
        if (!now->ids.insert(mine_.id).second)
            now->blame(fmt::format("worker {} is there twice", mine_.id));
        now->living[mine_.id] = &mine_;
    }
    worker(const worker&) = delete;
    ~worker() { now->living.erase(mine_.id); }

    task<int> live();

private:
    using place_ptr = std::shared_ptr<spmd::detail::elastic_place>;

    task<int> work();
    task<int> train(place_ptr in);
    task<int> give_up(error why);
    task<void> build();
    task<void> enter(place_ptr in);
    task<void> take_state(place_ptr in, const train::detail::world_plan* plan);
    task<row> do_step(place_ptr in);
    task<void> end_step(place_ptr in);
    task<std::vector<byte_buffer>> gather(place_ptr in, std::string key, byte_buffer blob);
    task<void> compute(int most_ms);
    void may_die(point at);

    sim::process* process_;
    sim::world& w_;
    rank mine_;
    spmd::detail::elastic_client_options how_;
    spmd::detail::elastic_wishes wishes_;
    std::unique_ptr<spmd::detail::elastic_client> client_;
    place_ptr place_; ///< of the newest world
    bool is_odd_ = false, is_connected_ = false;
};

task<int> worker::live() {
    client_ = std::make_unique<spmd::detail::elastic_client>(process_->network(), how_, wishes_);
    mine_.client = client_.get();
    int code = 0;
    std::optional<error> why;
    try {
        auto working = work();
        code = co_await working;
    } catch (const exits& e) {
        code = e.code;
    } catch (const train::detail::state_lost&) { // a loss for the job: another one begins anew
        code = 1;
    } catch (const error& e) {
        why = e;
    }
    mine_.was_dropped = true;
    if (why) {
        auto giving_up = as_result(give_up(*why));
        const auto given_up = co_await giving_up;
        if (given_up) code = *given_up;
    }
    mine_.client = nullptr;
    auto closed = shield(client_->close());
    co_await closed;
    if (why && code < 0) throw *why;
    co_return code;
}

/// As train's worker ends when something is wrong; negative: with this error.
task<int> worker::give_up(error why) {
    bool is_echo = false;
    if (is_of_world(why.code()) && place_) {
        std::optional<error> lost;
        auto listening = place_->losses.add([&](int, const error& e) { lost = e; });
        for (int i = 0; i < 20 && !lost; ++i) co_await sleep_for(50ms);
        is_echo = lost.has_value();
    }
    const int stop = wishes_.stop_signal;
    if (stop != 0 && why.code() == errc::cancelled) co_return 128 + stop;
    if (!is_echo && is_connected_) {
        auto failing = client_->fail(why);
        co_await failing;
    }
    co_return -1;
}

void worker::may_die(point at) {
    const double rate = now->deadly[static_cast<std::size_t>(at)];
    if (rate > 0 && !now->calm && w_.chance(rate)) now->children->kill(mine_.pid);
}

task<void> worker::compute(int most_ms) {
    const auto ms = w_.below(static_cast<std::uint64_t>(most_ms) + 1);
    auto computing = sleep_for(std::chrono::milliseconds(ms));
    co_await computing;
}

/// Alone, before it asks for a world.
task<void> worker::build() {
    auto building = compute(w_.chance(0.2) ? 800 : 50);
    co_await building;
    may_die(point::start);
    if (!now->calm && w_.chance(0.02)) throw exits{3};
    if (!now->calm && w_.chance(0.02)) { // it never asks
        auto hanging = sleep_for(std::chrono::hours(1));
        co_await hanging;
    }
}

task<int> worker::work() {
    auto building = build();
    co_await building;
    auto connecting = client_->connect();
    co_await connecting;
    is_connected_ = true;
    auto last = spmd::world_end::none;
    for (;;) {
        may_die(point::ask);
        place_ = nullptr;
        auto asking = client_->next(last, {});
        place_ = co_await asking;
        if (!place_) co_return 0;
        std::optional<error> why;
        try {
            auto training = train(place_);
            const int code = co_await training;
            if (code >= 0) co_return code;
            last = spmd::world_end::paused;
        } catch (const error& e) {
            why = e;
        }
        if (!why) continue;
        if (!is_of_world(why->code())) throw *why;
        last = spmd::world_end::broken;
    }
}

/// All ranks' blobs. The end of the world cuts it off.
task<std::vector<byte_buffer>> worker::gather(place_ptr in, std::string key, byte_buffer blob) {
    if (!in->client) throw error(errc::closed, "this world has ended");
    cancel_source stop;
    std::optional<error> lost;
    auto listening = in->losses.add([&](int, const error& e) {
        lost = e;
        stop.request();
    });
    auto exchanged =
        as_result(with_cancel(stop.token(), in->client->exchange(std::move(key), std::move(blob))));
    auto all = co_await exchanged;
    if (all) co_return std::move(*all);
    if (lost) throw *lost;
    throw all.error();
}

/// Until the end of the training (its exit code), or a pause (-1).
task<int> worker::train(place_ptr in) {
    auto entering = enter(in);
    co_await entering;
    for (;;) {
        if (mine_.step >= now->total) break;
        auto stepping = do_step(in);
        const auto said = co_await stepping;
        if (said.stop) break;
        if (said.change && mine_.step < now->total) co_return -1;
    }
    may_die(point::goodbye);
    mine_.was_dropped = true; // nobody needs it any more
    now->done.insert(mine_.id);
    place_ = nullptr;
    auto leaving = client_->leave();
    co_await leaving;
    const int stop = wishes_.stop_signal;
    co_return stop != 0 ? 128 + stop : 0;
}

/// The words of all, and what follows from them.
task<void> worker::enter(place_ptr in) {
    may_die(point::words);
    world_word word;
    word.has_state = mine_.has_state;
    word.is_torn = mine_.is_torn;
    word.applied = mine_.reached();
    word.end = mine_.applied ? step_end::decide : mine_.end;
    word.model = is_odd_ ? "odd" : "even";
    auto exchanged = gather(in, "words", wire::encode(word));
    const auto words = co_await exchanged;
    std::vector<world_word> all;
    for (const auto& one : words) all.push_back(wire::decode<world_word>(one).value());
    const auto plan = train::detail::plan_world(all);
    if (plan.refused) {
        if (*plan.refused == static_cast<std::size_t>(in->begin.rank))
            throw error(errc::mismatch, plan.why);
        throw error(errc::peer_lost, "a rank was refused");
    }
    if (mine_.applied) {
        mine_.applied = false;
        ++mine_.step;
        mine_.end = step_end::decide;
    }
    auto taking = take_state(in, &plan);
    co_await taking;
    if (!plan.begins) {
        note_works(mine_);
        auto ending = end_step(in);
        co_await ending;
    }
}

task<void> worker::take_state(place_ptr in, const train::detail::world_plan* plan) {
    const bool gives = plan->gives[static_cast<std::size_t>(in->begin.rank)];
    const bool all_have = std::ranges::find(plan->gives, false) == plan->gives.end();
    copied blob;
    if (gives) blob = {mine_.step, mine_.state, mine_.end};
    if (plan->begins && gives) {
        note_begins(mine_);
        blob = {now->disk.step, now->disk.state, step_end::nothing};
    }
    if (!all_have || plan->begins) {
        if (!gives) {
            mine_.is_torn = true;
            mine_.has_state = false;
        }
        may_die(point::copy);
        auto copying = compute(gives ? 5 : 20);
        co_await copying;
        auto exchanged = gather(in, "state", wire::encode(blob));
        const auto all = co_await exchanged;
        const auto from = wire::decode<copied>(all[static_cast<std::size_t>(plan->first)]).value();
        if (!gives || plan->begins) {
            mine_.step = from.step;
            mine_.state = from.state;
            mine_.end = from.end;
        }
        may_die(point::copy);
        auto agreed = gather(in, "copied", {});
        (void)co_await agreed;
    }
    mine_.is_torn = false;
    mine_.has_state = true;
}

/// One step, with its vote; what the ranks have said with it.
task<row> worker::do_step(place_ptr in) {
    if (mine_.todo == order::exit_early) throw exits{0};
    if (mine_.todo == order::fail) throw error(errc::io, "it fails on purpose");
    auto computing = compute(20);
    co_await computing;
    may_die(point::row);
    const auto generation = in->begin.now.generation;
    row said;
    said.step = mine_.step;
    said.state = mine_.state;
    said.gradient = mix(mine_.id, mix(mine_.step, generation));
    said.change = wishes_.change;
    said.stop = wishes_.stop_signal != 0;
    auto exchanged = gather(in, fmt::format("row {}", mine_.step), wire::encode(said));
    const auto rows = co_await exchanged;
    row all;
    std::uint64_t state = mine_.state;
    for (const auto& bytes : rows) {
        const auto one = wire::decode<row>(bytes).value();
        if (one.step != mine_.step || one.state != mine_.state)
            now->blame(
                fmt::format("the ranks of view {} differ before step {}", generation, mine_.step));
        all.change = all.change || one.change;
        all.stop = all.stop || one.stop;
        state = mix(state, one.gradient);
    }
    mine_.state = state;
    mine_.applied = true;
    note_applied(mine_, generation);
    may_die(point::apply);
    if (w_.chance(0.3)) {
        auto applying = compute(5);
        co_await applying;
    }
    mine_.applied = false;
    ++mine_.step;
    mine_.end = step_end::decide;
    auto ending = end_step(in);
    co_await ending;
    co_return all;
}

/// What comes after a step: decided together, written by rank 0.
task<void> worker::end_step(place_ptr in) {
    if (mine_.end == step_end::nothing) co_return;
    may_die(point::commit);
    const bool is_due = mine_.step % 5 == 0 || mine_.step >= now->total;
    if (is_due && mine_.end == step_end::decide) {
        auto agreed = gather(in, fmt::format("end {}", mine_.step), {});
        (void)co_await agreed;
    }
    mine_.end = step_end::report;
    if (is_due && in->begin.rank == 0) {
        const auto generation = in->begin.now.generation;
        if (generation < now->newest_progress)
            now->blame(fmt::format("worker {} writes a checkpoint in view {}, view {} has progress",
                                   mine_.id, generation, now->newest_progress));
        now->disk = {mine_.step, mine_.state};
    }
    if (is_due) {
        auto agreed = gather(in, fmt::format("written {}", mine_.step), {});
        (void)co_await agreed;
    }
    mine_.end = step_end::nothing;
}

task<int> worker_program(sim::process* self) {
    worker me(self);
    auto living = me.live();
    co_return co_await living;
}

// ---- the register -------------------------------------------------------------------------------

/// What a view was made of, told before it is swapped in.
using look_at_view = std::function<void(const spmd::view&)>;

/// In memory, behind a network: it is slow, away for a while, answers are lost, and now and then all
/// that it held.
class far_register final : public spmd::view_register {
public:
    far_register(sim::world& w, look_at_view look) : w_(w), look_(std::move(look)) {
        is_slow_ = w.chance(0.3);
        loses_ = w.chance(0.3) ? 0.3 : 0.0;
        goes_away_ = w.chance(0.2) ? 0.2 : 0.0;
        forgets_ = w.chance(0.2) ? 0.2 : 0.0;
    }

    task<spmd::view> read() override {
        auto going = travel();
        co_await going;
        co_return newest_;
    }
    task<spmd::swap_result> compare_and_swap(std::uint64_t generation, spmd::view next) override {
        look_(next);
        swaps = next;
        for (;;) {
            auto going = travel();
            co_await going;
            if (w_.loop.draw(now->calm ? 0.0 : forgets_)) newest_ = {};
            spmd::swap_result how;
            how.swapped = newest_.generation <= generation && next.generation == generation + 1;
            if (how.swapped) newest_ = next;
            how.now = newest_;
            if (how.swapped && how.now.generation != chain) { // one that is lost is put there again
                if (how.now.generation != chain + 1) now->blame("the chain of views is broken");
                chain = how.now.generation;
            }
            const bool is_lost = w_.loop.draw(now->calm ? 0.0 : loses_);
            auto coming = travel();
            co_await coming;
            if (is_lost) continue;
            how.swapped = how.now == next; // also when an earlier try did it
            swaps.reset();
            co_return how;
        }
    }
    task<spmd::view> watch(std::uint64_t after) override { return truth_.watch(after); } // nobody's
    task<spmd::coordinator_place> claim(spmd::coordinator_place me) override {
        return truth_.claim(std::move(me));
    }
    task<spmd::coordinator_place> watch_coordinator(spmd::coordinator_place known) override {
        return truth_.watch_coordinator(std::move(known));
    }
    task<void> resign() override { return truth_.resign(); }

    /// Whether what is said at the end is heard in time.
    [[nodiscard]] bool is_quick() const noexcept { return !is_slow_ && goes_away_ <= 0; }

    std::uint64_t chain = 0;
    std::optional<spmd::view> swaps; ///< that is under way

private:
    task<void> travel() {
        auto most = 1;
        if (!now->calm && is_slow_) most = 300;
        if (!now->calm && w_.loop.draw(goes_away_)) most = 3000;
        const auto pause = w_.loop.draw_delay(0ms, std::chrono::milliseconds(most));
        auto sleeping = sleep_for(pause);
        co_await sleeping;
    }

    sim::world& w_;
    look_at_view look_;
    spmd::memory_register truth_; ///< of the coordinator's place
    spmd::view newest_;
    bool is_slow_ = false;
    double loses_ = 0, goes_away_ = 0, forgets_ = 0;
};

// ---- a job --------------------------------------------------------------------------------------

/// A job in its world, and what was seen of it.
class stage final : public spmd::keeper_listener {
public:
    stage(sim::world& w, spmd::coordinator_options how, spmd::local_keeper_options keep,
          const std::string& host, bool waits_for_places)
        : w_(w), options_(how), is_placed_later_(waits_for_places), children(w.network, host),
          places(w, children), truth(w, [this](const spmd::view& next) { look_at(next); }),
          keeper(w.network.host("boss"),
                 waits_for_places ? static_cast<proc::children&>(places) : children,
                 std::move(keep)),
          coordinator(w.network.host("boss"), truth, watched(std::move(how))) {
        aim_at(options_.start > 0 ? options_.start : options_.most);
        children.add(spmd::rank_role, &worker_program);
        coordinator.add(keeper);
    }

    task<void> run();

    // Between the keeper and the coordinator.
    void worker_started(std::uint64_t id, std::int64_t pid) override {
        coordinator.worker_started(id, pid);
    }
    void worker_said(std::uint64_t id, std::uint16_t kind, byte_span body) override {
        const bool leaves = kind == spmd::detail::member_leave::number;
        if (leaves && asked_.insert(id).second && !is_placed_later_) aim_at(target - 1);
        if (kind == spmd::detail::member_fail::number) failed_.insert(id);
        if (kind == spmd::detail::member_ask::number) note_ask(id, body);
        coordinator.worker_said(id, kind, body);
    }
    void worker_place(std::uint64_t id, const proc::place_news& news) override {
        if (news.what == proc::place_news::kind::asked_back) asked_back_.insert(id);
        coordinator.worker_place(id, news);
    }
    void worker_ended(std::uint64_t id, const spmd::worker_end& how) override;

    // Of the driver.
    void set_target(int workers) {
        aim_at(workers);
        coordinator.set_target(workers);
    }
    void stop(int signal) {
        stop_signal = signal;
        coordinator.stop(signal);
    }

private:
    void aim_at(int workers) {
        target = std::clamp(workers, options_.least, options_.most);
        lowest_target_ = std::min(lowest_target_, target);
    }
    spmd::coordinator_options watched(spmd::coordinator_options how) {
        how.on_view = [this](const spmd::view& made) { note_view(made); };
        how.on_failure = [this](const error& why, int count, int) { note_failure(why, count); };
        return how;
    }
    void look_at(const spmd::view& next);
    void look_at_members(const spmd::view& next);
    void note_ask(std::uint64_t id, byte_span body);
    [[nodiscard]] bool any_has_state(const spmd::view& of) const;
    void note_view(const spmd::view& made);
    void note_failure(const error& why, int count);
    task<void> drive();
    task<void> act();
    task<spmd::supervisor_outcome> run_coordinator();
    void check_end(const spmd::supervisor_outcome& how);
    [[nodiscard]] bool is_expected(const error& why) const;
    [[nodiscard]] int losses_before(time_point when) const;
    rank* any_rank();

    sim::world& w_;
    spmd::coordinator_options options_;
    bool is_placed_later_;

public:
    sim::children children;
    placed_later places;
    far_register truth;
    spmd::local_keeper keeper;
    spmd::elastic_coordinator coordinator;
    int target = 0, stop_signal = 0;

private:
    spmd::view newest_;
    std::set<std::uint64_t> asked_, failed_, ended_, were_members_, asked_back_;
    std::set<std::uint64_t> have_state_; ///< for certain, as the coordinator knows it
    int failures_ = 0, bad_ends_ = 0, broken_ = 0;
    int lowest_target_ = 1000;
    std::set<std::uint64_t> broken_views_;
    std::vector<time_point> lost_at_;
    bool was_put_ = false; ///< a rank ends by itself
};

/// Of whatever is offered to the register.
void stage::look_at(const spmd::view& next) {
    if (next.generation != truth.chain + 1) now->blame("a view does not follow the one before");
    if (next.is_over) return;
    look_at_members(next);
    const auto size = static_cast<int>(next.members.size());
    // The only place is left by one whose state another one gets first.
    const bool hands_on = options_.most == 1 &&
                          (asked_.contains(next.members.front().id) ||
                           asked_back_.contains(next.members.front().id)) &&
                          were_members_.contains(next.members.front().id);
    if (size > options_.most + (hands_on ? 1 : 0) || size < (stop_signal != 0 ? 1 : options_.least))
        now->blame(fmt::format("a view of {} members", size));
    if (next.failures != static_cast<std::uint64_t>(failures_))
        now->blame("a view says another number of failures");
}

void stage::look_at_members(const spmd::view& next) {
    std::set<std::uint64_t> ids;
    for (const auto& m : next.members) {
        if (!ids.insert(m.id).second) now->blame(fmt::format("worker {} is twice in a view", m.id));
        if (ended_.contains(m.id))
            now->blame(fmt::format("worker {} has ended, and is in a new view", m.id));
    }
    if (any_has_state(newest_) && !any_has_state(next))
        now->blame(fmt::format("all that have state leave before view {}", next.generation));
    // Those that stay keep their order and come first.
    std::size_t at = 0;
    for (const auto& m : newest_.members) {
        if (ids.contains(m.id)) {
            if (next.members[at].id != m.id) now->blame("those that stay change their order");
            ++at;
            continue;
        }
        const auto lives = now->living.find(m.id);
        const bool may_go = lives == now->living.end() || lives->second->was_dropped ||
                            ended_.contains(m.id) || asked_.contains(m.id) ||
                            asked_back_.contains(m.id) || failed_.contains(m.id);
        if (!may_go && static_cast<int>(next.members.size()) < lowest_target_)
            now->blame(
                fmt::format("worker {} lives, and is in view {} no more", m.id, next.generation));
    }
    for (; at < next.members.size(); ++at) {
        const auto id = next.members[at].id;
        if (were_members_.contains(id)) now->blame(fmt::format("worker {} joins again", id));
        if (asked_.contains(id))
            now->blame(fmt::format("worker {} joins, and was told to go before", id));
    }
}

void stage::note_ask(std::uint64_t id, byte_span body) {
    const auto said = wire::decode<spmd::detail::member_ask>(body).value();
    if (said.last == static_cast<std::uint8_t>(spmd::world_end::paused) &&
        said.generation == newest_.generation)
        have_state_.insert(id);
}

bool stage::any_has_state(const spmd::view& of) const {
    return std::ranges::any_of(of.members, [this](const spmd::view_member& m) {
        return have_state_.contains(m.id) && !ended_.contains(m.id);
    });
}

void stage::note_view(const spmd::view& made) {
    w_.loop.trace(made.generation << 8 | made.members.size());
    // One that was made while the job failed is not begun, and not told.
    if (made.generation != newest_.generation + 1 &&
        (!made.is_over || made.generation != newest_.generation + 2))
        now->blame("a view was left out");
    for (const auto& m : made.is_over ? std::vector<spmd::view_member>() : newest_.members) {
        const auto lives = now->living.find(m.id);
        const bool stays = std::ranges::any_of(
            made.members, [&](const spmd::view_member& n) { return n.id == m.id; });
        if (!stays && lives != now->living.end()) lives->second->was_dropped = true;
    }
    newest_ = made;
    for (const auto& m : made.members) {
        were_members_.insert(m.id);
        if (made.generation == 1) have_state_.insert(m.id);
    }
    if (made.is_over || now->calm || made.members.empty() || !w_.chance(0.1)) return;
    // While its group forms, or what follows.
    const auto pid = made.members[w_.below(made.members.size())].pid;
    w_.loop.after(w_.loop.draw_delay(0ms, 20ms), [this, pid] {
        if (!now->calm) children.kill(pid);
    });
}

void stage::note_failure(const error& why, int count) {
    if (count != failures_ && count != failures_ + 1) now->blame("the number of failures leaps");
    if (count == failures_ + 1 && why.text().find("no worker was lost") != std::string::npos)
        broken_ += broken_views_.insert(newest_.generation).second ? 1 : 0;
    failures_ = count;
    if (failures_ > bad_ends_ + broken_)
        now->blame(fmt::format("{} failures of {} bad ends", failures_, bad_ends_ + broken_));
}

void stage::worker_ended(std::uint64_t id, const spmd::worker_end& how) {
    if (!ended_.insert(id).second) now->blame(fmt::format("worker {} ended twice", id));
    if (!how.success()) ++bad_ends_;
    const bool is_member = std::ranges::any_of(
        newest_.members, [id](const spmd::view_member& m) { return m.id == id; });
    if (!how.success() && is_member && !newest_.is_over && !truth.swaps && stop_signal == 0 &&
        !now->done.contains(id) && !failed_.contains(id))
        lost_at_.push_back(w_.loop.now());
    coordinator.worker_ended(id, how);
}

rank* stage::any_rank() {
    if (now->living.empty()) return nullptr;
    auto at = now->living.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(w_.below(now->living.size())));
    return at->second;
}

/// One thing that somebody does to the job.
task<void> stage::act() {
    auto* const one = any_rank();
    if (is_placed_later_ && w_.chance(0.4)) {
        w_.chance(0.7) ? places.ask_back() : places.undo();
        co_return;
    }
    switch (w_.below(12)) {
    case 0:
    case 1:
        if (one != nullptr) children.kill(one->pid);
        break;
    case 2: // two at once, or the same
        if (one != nullptr) children.kill(one->pid);
        if (auto* const two = any_rank()) children.kill(two->pid);
        break;
    case 3:
        if (!newest_.members.empty()) children.kill(newest_.members.front().pid);
        break;
    case 4:
    case 5: {
        const std::uint64_t most = w_.chance(0.3) ? 8000 : 1000; // taken for dead, or not
        const auto length = std::chrono::milliseconds(w_.below(most));
        if (one != nullptr) children.pause(one->pid, length);
        break;
    }
    case 6:
    case 7: set_target(1 + static_cast<int>(w_.below(5))); break;
    case 8:
    case 9:
        if (one == nullptr || one->client == nullptr) break;
        one->client->ask_to_leave("it was told to go");
        break;
    case 10:
        if (one == nullptr || !w_.chance(0.15)) break;
        one->todo = w_.chance(0.5) ? order::exit_early : order::fail;
        was_put_ = true;
        break;
    default:
        if (w_.chance(0.15)) stop(w_.chance(0.5) ? SIGINT : SIGTERM);
    }
    co_return;
}

task<void> stage::drive() {
    children.begin_faults();
    const int acts = static_cast<int>(w_.below(12));
    const std::uint64_t most = w_.chance(0.5) ? 400 : 1500;
    for (int i = 0; i < acts; ++i) {
        auto waiting = sleep_for(std::chrono::milliseconds(w_.below(most)));
        co_await waiting;
        auto acting = act();
        co_await acting;
        w_.check(now->violation.empty(), now->violation);
    }
    now->calm = true;
    places.calm();
    if (w_.chance(0.5)) places.undo(); // else they leave when others have come
    w_.network.stop_faults();
    children.stop_faults();
}

task<void> as_task_of(task<spmd::supervisor_outcome> work,
                      std::optional<spmd::supervisor_outcome>* into) {
    *into = co_await work;
}

task<void> stage::run() {
    scope beside;
    beside.spawn(keeper.run(*this));
    beside.spawn(drive());
    std::optional<spmd::supervisor_outcome> outcome;
    std::exception_ptr failure;
    try {
        auto running = with_timeout(as_task_of(coordinator.run(), &outcome), 600s);
        co_await running;
    } catch (...) {
        failure = std::current_exception();
    }
    now->calm = true;
    beside.cancel();
    auto joined = shield(as_result(beside.join()));
    const auto ended = co_await joined;
    auto ending = places.end_all();
    co_await ending;
    w_.network.stop_faults();
    w_.check(now->violation.empty(), now->violation);
    if (failure) std::rethrow_exception(failure);
    w_.check(ended || ended.error().code() == errc::cancelled, "a service of the job failed");
    check_end(*outcome);
    co_await sleep_for(3s); // for what was closed
    w_.check(now->violation.empty(), now->violation);
    w_.check(children.running().empty(), "a process is left");
    w_.check(now->living.empty(), "a worker is left");
}

void stage::check_end(const spmd::supervisor_outcome& how) {
    w_.check(how.restarts == failures_, "the outcome says another number of failures");
    w_.check(failures_ <= options_.max_failures + 1, "the job went on after its last failure");
    w_.check(children.running().empty(), "the job has ended before its workers");
    w_.check(newest_.is_over || !truth.is_quick(),
             "the last view does not say that the job is over");
    w_.loop.trace(how.failure ? static_cast<std::uint64_t>(how.failure->code()) : 0);
    if (!how.failure) {
        if (stop_signal == 0)
            w_.check(now->disk.step == now->total, "the job ended well before its training");
        w_.check(failures_ >= losses_before(w_.loop.now() - 1s), "a loss was not counted");
        return;
    }
    w_.check(is_expected(*how.failure), how.failure->what());
}

/// Of members, that surely had to be counted.
int stage::losses_before(time_point when) const {
    return static_cast<int>(
        std::ranges::count_if(lost_at_, [&](time_point at) { return at <= when; }));
}

/// Whether the job may end for this reason.
bool stage::is_expected(const error& why) const {
    const auto says = [&](std::string_view text) {
        return std::string_view(why.what()).find(text) != std::string_view::npos;
    };
    if (failures_ > options_.max_failures) return true;
    if (now->disk.step == now->total && (says("SIGKILL") || says("was silent")))
        return true; // after its work was done
    if (stop_signal != 0) return why.code() != errc::internal;
    // At the very end a broken link may swallow a rank's goodbye, or the last words that it needs.
    if (now->disk.step == now->total &&
        (says("exited before the job was done") || says("the supervisor is gone") ||
         (says("wants another world, and others are done") && !now->done.empty())))
        return true;
    if (says("exited before the job was done") || says("on purpose")) return was_put_;
    if (why.code() == errc::mismatch && now->odd > 0) return true;
    // What only comes again, before the first view; with views, too often.
    // The view that says so may not have reached the register.
    if (says("could not be started")) return newest_.generation <= 1 || bad_ends_ >= 3;
    return says("fewer than") && bad_ends_ > 6; // a long pause before the next start
}

task<void> play(sim::world& w, bool waits_for_places) {
    history seen;
    now = &seen;
    seen.w = &w;
    seen.total = 10 + w.below(60);
    seen.settings = {{"seed", "1"}};
    seen.odd = w.chance(0.15) ? 0.3 : 0.0;
    for (auto& rate : seen.deadly) rate = w.chance(0.1) ? 0.05 : 0.0;
    spmd::coordinator_options how;
    how.job = "job";
    how.least = 1 + static_cast<int>(w.below(3));
    how.most = how.least + static_cast<int>(w.below(4));
    how.start = w.chance(0.5) ? 0 : how.least;
    how.max_failures = w.chance(0.3) ? static_cast<int>(w.below(5)) : 30;
    how.times.first_settle = 300ms;
    how.times.ready_limit = 10s;
    how.times.pause_limit = 30s;
    how.times.stop_grace = 10s;
    how.times.join_deadline = 10s;
    how.groups = net::address::sim("boss", 0);
    how.random = &w.loop.random();
    spmd::local_keeper_options keep;
    const bool is_far = w.chance(0.5);
    keep.host = is_far ? "workers" : "boss";
    keep.places = how.most + 1;
    keep.least = how.least;
    keep.most = how.most;
    keep.job = how.job;
    keep.door = net::address::sim("boss", 0);
    keep.secret = net::token::generate(w.loop.random());
    const auto host = keep.host;
    if (waits_for_places) keep.places *= 2; // others come for those that leave
    stage job(w, how, std::move(keep), host, waits_for_places);
    seen.children = &job.children;
    auto& faults = job.children.faults();
    faults = sim::child_faults::draw(w.loop.random());
    faults.kill_every *= 4;
    faults.no_descriptors /= 2;
    faults.hang = 0;
    auto running = job.run();
    co_await running;
    w.loop.trace(seen.ids.size());
}

task<void> on_one_host(sim::world& w) {
    auto playing = play(w, false);
    co_await playing;
}
task<void> in_places(sim::world& w) {
    auto playing = play(w, true);
    co_await playing;
}

const sim::scenario registered("elastic", &on_one_host), places("elastic_places", &in_places);

} // namespace elastic_world
