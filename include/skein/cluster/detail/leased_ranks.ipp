// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/leased_ranks.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/head_client.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/detail/served_runs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/this_process.hpp>
#include <skein/net/network.hpp>
#include <skein/sched/demands.hpp>
#include <skein/sched/scheduler.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/wire/decode.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

/// Without a head an agent ends what it runs, see agent_options::orphan_grace; after so long it has.
inline constexpr duration ranks_lost_after = std::chrono::seconds(45);

} // namespace detail

SKEIN_INLINE program_place this_program(const net::address& head) {
    program_place out;
    out.executable = std::filesystem::read_symlink("/proc/self/exe").string();
    if (out.executable.ends_with(" (deleted)"))
        throw error(errc::not_found, "the file of this program was replaced while it runs: nodes "
                                     "cannot start it")
            .with_hint("start the new one");
    out.folder = folder_at_start(); // where main begins on this host, too
    if (out.folder.empty())
        throw error(errc::not_found, "the folder in which this program was started has been "
                                     "removed: nodes cannot start it there")
            .with_hint("start it in a folder that is there");
    const char* const job = std::getenv("SKEIN_JOB");
    const char* const root = std::getenv(detail::job_folder_variable);
    const char* const its_head = std::getenv("SKEIN_ADDRESS");
    if (job == nullptr || *job == '\0' || its_head == nullptr || its_head != to_string(head))
        return out; // another head knows nothing of it
    out.job = job;
    if (root == nullptr || *root != '/') return out;
    std::error_code none; // the kernel's names of this process have no links in them
    const auto real = std::filesystem::weakly_canonical(root, none);
    if (none) return out;
    for (auto* path : {&out.executable, &out.folder}) {
        const auto inside = std::filesystem::path(*path).lexically_relative(real).string();
        if (!inside.empty() && !inside.starts_with("..")) *path = inside;
    }
    return out;
}

struct leased_ranks::state final : std::enable_shared_from_this<leased_ranks::state>,
                                   detail::head_events,
                                   detail::group_events {
    /// A rank, from start() until its end was told.
    struct lease {
        std::uint64_t number = 0;
        std::string name; ///< "worker 3 on n2"
        bool is_granted = false, asked = false, ends_now = false;
        std::string node; ///< on which it is
        proc::place_listener on_place;
        std::optional<proc::child_end> end;
        event over;
    };
    using lease_ptr = std::shared_ptr<lease>;
    class rank_child;

    state(loop& on, net::network& via, leased_ranks_options given);

    [[nodiscard]] detail::head_link_options link_options();
    static task<void> keep(state* self);
    static task<void> watch_head(state* self);
    void lose_all(const std::string& why);
    void lose_waiting(const std::string& why);
    void end(const lease_ptr& l, proc::child_end how);
    void ask_to_end(lease& l, bool at_once);
    void tell_place(const lease& l, proc::place_news::kind what, const std::string& text) const;
    static task<void> give_up_unseen(state* self, lease_ptr which);
    static std::uint16_t take_door(std::map<std::string, std::string>& told);
    [[nodiscard]] std::vector<proc::child_place> places();
    [[nodiscard]] std::uint32_t attempt() const {
        return static_cast<std::uint32_t>(last_group) - 1;
    }
    static task<std::vector<proc::child_place>> reserve(state* self, int ranks);
    void drop_group();

    // of head_events and group_events
    driver_hello describe() override;
    void on_welcome(const driver_welcome& m) override;
    std::string worker_of(std::uint64_t number) const override;
    void on_granted(const lease_granted& m) override;
    void on_ended(const lease_ended& m) override;
    void on_unanswered(std::uint64_t number) override;
    void on_waits(const lease_waits& m) override;
    std::string on_scale(int workers) override;
    void on_recalled(const lease_recalled& m) override;
    void on_group_placed(const group_placed& m) override;
    void on_group_waits(const group_waits& m) override;
    void on_group_refused(const group_refused& m) override;

    loop& on_loop;
    leased_ranks_options how;
    std::string demand; ///< of each rank
    event stopping, changed;
    duration ranks_lost_after = detail::ranks_lost_after; ///< or when this head's nodes wait longer
    detail::head_client head;
    std::optional<error> over;                         ///< the link to the head has ended for good
    std::function<void(const std::string& why)> leave; ///< see on_leave
    bool is_leaving = false;                           ///< it was told to
    std::optional<std::string> runs;
    bool this_host_only = false; ///< the head is reached there alone
    std::map<std::uint64_t, lease_ptr> leases;
    std::uint64_t last_number = 0, last_group = 0;
    std::uint64_t group = 0;            ///< 0: none
    std::vector<placed_bundle> placed;  ///< of that
    std::optional<std::string> waits;   ///< no nodes could hold the group
    std::optional<std::string> refused; ///< there can be no such group
    std::vector<std::size_t> bundle_of; ///< by rank
    std::size_t started = 0;            ///< of these ranks
    detail::served_runs served;
    std::function<std::string(int many)> scaler;
    scope keeping, beside; ///< the link; what looks
};

/// What a supervisor has of a rank.
class leased_ranks::state::rank_child final : public proc::child {
public:
    rank_child(std::shared_ptr<state> of, lease_ptr which)
        : of_(std::move(of)), lease_(std::move(which)) {}
    ~rank_child() override { kill(); }

    const std::string& name() const noexcept override { return lease_->name; }
    std::int64_t pid() const noexcept override { return 0; } // of another host
    bool running() const noexcept override { return !lease_->end; }
    task<proc::child_end> ended() override {
        auto waiting = detail::wait_for(&lease_->over);
        co_await waiting;
        co_return *lease_->end;
    }
    void signal(int) noexcept override { of_->ask_to_end(*lease_, false); }
    void kill() noexcept override { of_->ask_to_end(*lease_, true); }
    void keep_place(const std::string& why) noexcept override {
        of_->head.keep(lease_->number, why);
    }
    proc::process_usage usage() override { return {}; }
    std::unique_ptr<net::stream> take_stream() override { return nullptr; }
    task<std::size_t> read_output(bool, std::span<std::byte>) override { co_return 0; }

private:
    std::shared_ptr<state> of_;
    lease_ptr lease_;
};

SKEIN_INLINE leased_ranks::state::state(loop& on, net::network& via, leased_ranks_options given)
    : on_loop(on), how(std::move(given)),
      head(on, via, link_options(), how.print, "ranks", &stopping, *this, *this),
      served(via, how.serves_runs ? how.runs : std::string()) {
    if (how.demand.empty()) how.demand.cpu = 1;
    demand = sched::to_string(how.demand);
}

SKEIN_INLINE detail::head_link_options leased_ranks::state::link_options() {
    if (how.incarnation == 0) how.incarnation = system_random().next() | 1;
    detail::head_link_options o;
    o.head = how.head;
    o.secret = how.secret;
    o.name = how.name;
    o.host = how.host;
    o.pid = how.pid;
    o.incarnation = how.incarnation;
    o.join_within = how.join_within;
    o.times = how.times;
    return o;
}

// ---- the link to the head -----------------------------------------------------------------------

SKEIN_INLINE task<void> leased_ranks::state::keep(state* self) {
    try {
        auto joining = self->head.serve();
        co_await joining;
        self->over = error(errc::closed, "the cluster was stopped");
    } catch (const error& e) {
        if (e.code() == errc::cancelled) throw;
        self->over = e;
    }
    self->lose_all(self->over->text());
    self->changed.set();
}

/// Nobody tells of their ends any more.
SKEIN_INLINE task<void> leased_ranks::state::watch_head(state* self) {
    const auto& link = self->head.link();
    for (;; co_await sleep_for(std::chrono::seconds(1)))
        if (!link.is_joined() && link.was_welcomed() &&
            self->on_loop.now() >= deadline_after(link.alone_since(), self->ranks_lost_after))
            self->lose_all("the head has been away for so long that its node has ended it");
}

SKEIN_INLINE void leased_ranks::state::lose_all(const std::string& why) {
    const auto all = leases;
    for (const auto& [number, l] : all) end(l, {proc::exit_status(), {}, why, over.has_value()});
}

/// Places have gone before their ranks had them. The group gets others, which may take for ever,
/// and the other ranks would wait: the next attempt asks anew.
SKEIN_INLINE void leased_ranks::state::lose_waiting(const std::string& why) {
    const auto all = leases;
    for (const auto& [number, l] : all) {
        if (l->is_granted) continue;
        head.end(number, true);
        end(l, {proc::exit_status(), {}, "its place was lost before it had started: " + why});
    }
}

/// The link was lost between a wish and its answer. Whether the rank began, and has ended since, is
/// not known, and nobody is to start it twice; the head takes back what the hello is without.
SKEIN_INLINE void leased_ranks::state::on_unanswered(std::uint64_t number) {
    end(lease_ptr(leases.at(number)),
        {proc::exit_status(), {}, "the link to the head broke as it was being started"});
}

SKEIN_INLINE std::string leased_ranks::state::worker_of(std::uint64_t number) const {
    const auto found = leases.find(number);
    return found == leases.end() ? std::string() : found->second->name;
}

SKEIN_INLINE void leased_ranks::state::on_granted(const lease_granted& m) {
    auto& l = *leases.at(m.lease);
    if (std::exchange(l.is_granted, true)) return;
    l.node = m.node_name;
    l.name += " on " + m.node_name;
    tell_place(l, proc::place_news::kind::given, m.node_name);
}

SKEIN_INLINE void leased_ranks::state::tell_place(const lease& l, proc::place_news::kind what,
                                                  const std::string& text) const {
    if (l.on_place && !l.end) l.on_place({what, text});
}

SKEIN_INLINE void leased_ranks::state::on_waits(const lease_waits& m) {
    if (const auto found = leases.find(m.lease); found != leases.end())
        tell_place(*found->second, proc::place_news::kind::waits, m.why);
}

/// All ranks of a training of a fixed number leave together, or none.
SKEIN_INLINE void leased_ranks::state::on_recalled(const lease_recalled& m) {
    const auto found = leases.find(m.lease);
    if (found == leases.end()) return;
    if (how.come_and_go) {
        if (!m.withdrawn)
            head.leave(m.lease, true,
                       "it leaves between two steps, and another one starts where "
                       "there is room");
        return tell_place(*found->second,
                          m.withdrawn ? proc::place_news::kind::not_asked_back
                                      : proc::place_news::kind::asked_back,
                          m.why);
    }
    if (m.withdrawn) return;
    if (m.within_ms < 0 || !leave)
        return head.keep(m.lease, "the training goes on until it ends; with a deadline it saves "
                                  "and starts elsewhere");
    if (!m.no_room.empty() && !is_leaving) return head.keep(m.lease, m.no_room);
    head.leave(m.lease, true, "the training saves at its next step, and starts elsewhere");
    if (!std::exchange(is_leaving, true)) leave(m.why);
}

SKEIN_INLINE void leased_ranks::state::on_group_placed(const group_placed& m) {
    placed = m.bundles;
    changed.set();
}

SKEIN_INLINE void leased_ranks::state::on_group_waits(const group_waits& m) {
    if (!placed.empty() && how.come_and_go) return; // those that wait get other places
    if (!placed.empty()) return lose_waiting(m.why);
    waits = m.why;
    changed.set();
}

SKEIN_INLINE void leased_ranks::state::on_group_refused(const group_refused& m) {
    refused = m.why;
    changed.set();
}

SKEIN_INLINE driver_hello leased_ranks::state::describe() {
    driver_hello h;
    h.name = how.name;
    h.host = how.host;
    h.pid = how.pid;
    h.executable = how.program.executable;
    h.program = how.name;
    h.folder = how.program.folder;
    h.job = how.program.job;
    h.has_ranks = true;
    if (!how.advertise.empty()) h.address = to_string(net::address::tcp(how.advertise, 1));
    return h;
}

SKEIN_INLINE void leased_ranks::state::on_welcome(const driver_welcome& m) {
    ranks_lost_after = std::max<duration>(
        detail::ranks_lost_after,
        std::chrono::milliseconds(std::min(m.lost_after_ms, detail::most_lost_after_ms)) +
            std::chrono::seconds(15));
    runs = m.runs;
    this_host_only = head.link().notice().this_host_only;
    changed.set();
}

// ---- ranks --------------------------------------------------------------------------------------

SKEIN_INLINE void leased_ranks::state::end(const lease_ptr& l, proc::child_end how_it_was) {
    leases.erase(l->number);
    head.give_back(l->number);
    if (l->end) return;
    l->end = std::move(how_it_was);
    l->over.set();
}

/// One that has not been granted ends here and now: the head says nothing of it any more.
SKEIN_INLINE void leased_ranks::state::ask_to_end(lease& l, bool at_once) {
    if (l.end || (l.asked && (l.ends_now || !at_once))) return;
    l.asked = true;
    l.ends_now = at_once;
    head.end(l.number, at_once);
    const auto found = leases.find(l.number);
    if (found == leases.end()) return;
    const lease_ptr kept = found->second;
    if (!l.is_granted)
        return end(kept, {proc::exit_status(), {}, "it had not been started yet", false, true});
    if (at_once && !head.link().is_joined()) // its group is over, and it ends with that
        end(kept, {proc::exit_status(), {}, "the head is away, and cannot have it ended"});
    else if (at_once && how.come_and_go)
        beside.spawn(give_up_unseen(this, kept));
}

/// Its node may be out of reach, and the others are to go on: no world has it any more, and its
/// lease is given back.
SKEIN_INLINE task<void> leased_ranks::state::give_up_unseen(state* self, lease_ptr which) {
    auto ending = which->over.wait_for(self->how.times.suspect_after);
    (void)co_await ending;
    if (which->end) co_return;
    self->end(which, {proc::exit_status(),
                      {},
                      fmt::format("node {} has not said within {:.3g} s that it has ended",
                                  which->node, to_seconds(self->how.times.suspect_after))});
}

SKEIN_INLINE void leased_ranks::state::on_ended(const lease_ended& m) {
    const auto found = leases.find(m.lease);
    if (found == leases.end()) return;
    const auto l = found->second;
    if (m.is_drained) {
        if (leave) leave(m.how);
        return end(l, {proc::exit_status(), {}, m.how, false, true, true});
    }
    if (!m.started || (m.code < 0 && m.signal == 0))
        return end(
            l,
            {proc::exit_status(), {}, m.how, m.is_lasting && !m.started, l->asked && !m.started});
    const proc::exit_status status(m.signal != 0 ? m.signal : m.code << 8);
    end(l, {status, m.how == status.describe() ? std::string() : m.how});
}

// ---- places -------------------------------------------------------------------------------------

/// Ranks of one node have numbers in a row, and the nodes come in the order of the bundles, that of
/// this process first.
SKEIN_INLINE std::vector<proc::child_place> leased_ranks::state::places() {
    std::vector<std::uint64_t> nodes;
    for (const auto& b : placed)
        if (std::find(nodes.begin(), nodes.end(), b.node) == nodes.end()) nodes.push_back(b.node);
    const char* const own = std::getenv(detail::node_number_variable);
    const auto is_own = [&](std::uint64_t n) { return own != nullptr && own == fmt::to_string(n); };
    const auto here = std::find_if(nodes.begin(), nodes.end(), is_own);
    if (here != nodes.end()) std::rotate(nodes.begin(), here, std::next(here));
    std::vector<proc::child_place> all;
    bundle_of.clear();
    for (const auto node : nodes) {
        const auto first = all.size();
        for (std::size_t b = 0; b < placed.size(); ++b) {
            if (placed[b].node != node) continue;
            bundle_of.push_back(b);
            all.push_back({static_cast<int>(all.size() - first), 0});
        }
        for (auto i = first; i < all.size(); ++i)
            all[i].local_size = static_cast<int>(all.size() - first);
    }
    return all;
}

SKEIN_INLINE task<std::vector<proc::child_place>> leased_ranks::state::reserve(state* self,
                                                                               int ranks) {
    known_group g;
    self->group = g.number = ++self->last_group;
    g.strategy = static_cast<std::uint8_t>(sched::group_strategy::pack);
    g.bundles.assign(static_cast<std::size_t>(ranks), self->demand);
    self->started = 0;
    self->placed.clear();
    self->waits.reset();
    self->refused.reset();
    self->head.want_group(std::move(g));
    std::string said;
    const auto say = [&](std::string why) {
        if (why != said && self->how.on_wait) self->how.on_wait(why);
        said = std::move(why);
    };
    const auto patient = deadline_after(self->on_loop.now(), std::chrono::seconds(2));
    while (self->placed.empty()) {
        if (self->over) throw *self->over;
        if (self->refused) throw error(errc::exhausted, *self->refused);
        if (self->waits)
            say(*self->waits);
        else if (self->on_loop.now() >= patient)
            say(fmt::format("no room yet for {} ranks of {} each: others have the nodes", ranks,
                            self->demand));
        self->changed.reset();
        auto news = self->changed.wait_for(std::chrono::seconds(2));
        co_await news;
    }
    if (!said.empty()) say({});
    co_return self->places();
}

SKEIN_INLINE void leased_ranks::state::drop_group() {
    if (group != 0) head.drop_group(std::exchange(group, 0));
}

SKEIN_INLINE leased_ranks::leased_ranks(loop& on, net::network& via, leased_ranks_options how)
    : state_(std::make_shared<state>(on, via, std::move(how))) {}
SKEIN_INLINE leased_ranks::~leased_ranks() = default;

SKEIN_INLINE task<void> leased_ranks::open() {
    auto* const self = state_.get();
    self->keeping.spawn(state::keep(self));
    while (!self->runs) {
        if (self->over) throw *self->over;
        self->changed.reset();
        auto joined = detail::wait_for(&self->changed);
        co_await joined;
    }
    if (self->runs->empty() && !self->how.serves_runs)
        throw error(errc::not_supported,
                    fmt::format("not supported: ranks on the nodes of {} without a folder for runs "
                                "that all of them see",
                                to_string(self->how.head)))
            .with_hint("start the head with --runs DIR, or set SKEIN_ADDRESS=local to train on "
                       "this host");
    self->beside.spawn(state::watch_head(self));
}

SKEIN_INLINE task<std::vector<proc::child_place>> leased_ranks::reserve(int ranks) {
    auto* const self = state_.get();
    try {
        auto unserved = self->served.end(); // of the attempt before
        co_await unserved;
        auto reserving = state::reserve(self, ranks);
        co_return co_await reserving;
    } catch (...) {
        self->drop_group();
        throw;
    }
}

SKEIN_INLINE proc::children_door leased_ranks::door() {
    return {detail::driver_door(state_->this_host_only, state_->how.head, 0),
            detail::group_secret(detail::job_secret(state_->how.secret, state_->how.incarnation),
                                 state_->attempt())};
}

/// Where they meet is told by agents, each as its host reaches it: the port is left.
SKEIN_INLINE std::uint16_t leased_ranks::state::take_door(
    std::map<std::string, std::string>& told) {
    const auto* const where =
        told.contains(spmd::elastic_id_variable) ? spmd::elastic_variable : spmd::group_variable;
    const auto door = net::address::parse(told[where]);
    if (!door) throw door.error();
    for (const auto* const here : {where, spmd::token_variable}) told.erase(here);
    return door->port;
}

SKEIN_INLINE std::string leased_ranks::state::on_scale(int workers) {
    return scaler ? scaler(workers) : head_events::on_scale(workers);
}

SKEIN_INLINE void leased_ranks::set_scaler(std::function<std::string(int many)> scaler) {
    state_->scaler = std::move(scaler);
}

SKEIN_INLINE bool leased_ranks::are_placed_later() const noexcept {
    return state_->how.come_and_go;
}

SKEIN_INLINE task<std::unique_ptr<proc::child>> leased_ranks::start(proc::child_options what) {
    auto& self = *state_;
    auto told = wire::decode<std::map<std::string, std::string>>(what.message);
    if (!told) throw told.error();
    const auto l = std::make_shared<state::lease>();
    l->number = ++self.last_number;
    l->name = std::move(what.name);
    l->on_place = std::move(what.on_place);
    want_lease wish;
    wish.lease = l->number;
    wish.demand = self.demand;
    if (self.group != 0) {
        const auto next = std::min(self.started++, self.bundle_of.size() - 1);
        wish.label = sched::group_label(self.group, static_cast<int>(self.bundle_of.at(next)));
    }
    const bool is_last = self.how.come_and_go && self.started == self.bundle_of.size();
    wish.own = true;
    auto& order = wish.rank;
    const auto joined = [](const auto& pair) { return pair.first + "=" + pair.second; };
    order.port = state::take_door(*told);
    const auto at = door();
    auto serving = self.served.begin(at.at, at.secret);
    co_await serving;
    self.served.tell(*told);
    for (const auto& one : *told) order.place.push_back(joined(one)); // the agent has the rest
    for (const auto& one : what.env) order.env.push_back(joined(one));
    const auto names_runs = [](const auto& one) { return one.first == runs_variable; };
    if (!self.how.serves_runs && std::none_of(what.env.begin(), what.env.end(), names_runs))
        order.env.push_back(fmt::format("{}={}", runs_variable,
                                        self.how.runs.empty() ? *self.runs : self.how.runs));
    order.argv = what.argv.empty() ? own_arguments() : std::move(what.argv);
    order.attempt = self.attempt();
    order.threads = static_cast<std::uint16_t>(std::clamp(what.threads, 0, 0xffff));
    const auto most = std::min<time_span>(what.stop_grace, detail::most_stop_grace);
    order.stop_millis = static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(duration(most)).count());
    self.leases.emplace(l->number, l);
    if (self.over)
        self.end(l, {proc::exit_status(), {}, self.over->text()});
    else
        self.head.want(std::move(wish));
    // They have come together; from now on each goes and comes by itself.
    if (is_last && self.group != 0) self.head.loosen_group(std::exchange(self.group, 0));
    co_return std::make_unique<state::rank_child>(state_, l);
}

SKEIN_INLINE void leased_ranks::release() {
    const auto all = state_->leases;
    for (const auto& [number, l] : all) state_->ask_to_end(*l, true);
    state_->drop_group();
    state_->is_leaving = false;
}

SKEIN_INLINE void leased_ranks::on_leave(std::function<void(const std::string& why)> tell) {
    state_->leave = std::move(tell);
}

SKEIN_INLINE task<void> leased_ranks::close() {
    auto* const self = state_.get();
    auto printed = self->head.output().until_printed(self->how.times.dead_after);
    co_await printed; // a terminal may be slow
    self->stopping.set();
    auto left = as_result(with_timeout(self->keeping.join(), self->how.times.suspect_after));
    (void)co_await left; // it may be dialling a host that does not answer
    auto unserved = self->served.end();
    co_await unserved;
    for (auto* some : {&self->keeping, &self->beside}) {
        some->cancel();
        auto ended = as_result(shield(some->join()));
        (void)co_await ended;
    }
    auto deaf = as_result(shield(self->head.output().hear_out(false, {})));
    (void)co_await deaf;
    auto parting = as_result(shield(self->head.part()));
    (void)co_await parting;
}

} // namespace skein::cluster
