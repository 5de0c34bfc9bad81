// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/leased_ranks.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/head_link.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/this_process.hpp>
#include <skein/net/network.hpp>
#include <skein/sched/demands.hpp>
#include <skein/sched/scheduler.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
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

struct leased_ranks::state : std::enable_shared_from_this<leased_ranks::state> {
    /// A rank, from start() until its end was told.
    struct lease {
        std::uint64_t number = 0;
        std::string label, name; ///< "@1/0"; "worker 3 on n2"
        rank_order rank;
        std::uint64_t node = 0; ///< the incarnation of its agent; 0: not granted yet
        bool is_wished = false; ///< a head may have heard of it
        bool asked = false, ends_now = false;
        std::optional<proc::child_end> end;
        event over;
        std::uint64_t next_line = 1; ///< that it has not been heard of
    };
    using lease_ptr = std::shared_ptr<lease>;
    class rank_child;

    state(loop& on, net::network& via, leased_ranks_options given);

    [[nodiscard]] detail::head_link_options link_options();
    [[nodiscard]] std::shared_ptr<net::request_service> make_service();
    [[nodiscard]] driver_hello hello() const;
    static task<void> say_hello(state* self);
    static task<void> keep(state* self);
    static task<void> watch_head(state* self);
    void lose_all(const std::string& why);
    void lose_waiting(const std::string& why);
    void lose_untold();
    [[nodiscard]] want_lease wish(const lease& l) const;
    void end(const lease_ptr& l, proc::child_end how);
    void ask_to_end(lease& l, bool at_once);
    void on_ended(const lease_ended& m);
    void on_output(worker_output m);
    static task<void> print(state* self, std::vector<proc::worker_lines> what, std::uint64_t node);
    [[nodiscard]] std::vector<spmd::rank_place> places();
    static task<std::vector<spmd::rank_place>> reserve(state* self, int ranks);
    void drop_group();

    loop& on_loop;
    leased_ranks_options how;
    std::string demand; ///< of each rank
    event stopping, changed;
    duration ranks_lost_after = detail::ranks_lost_after; ///< or when this head's nodes wait longer
    detail::head_link head;
    std::optional<error> over; ///< the link to the head has ended for good
    std::optional<std::string> runs;
    bool this_host_only = false; ///< the head is reached there alone
    std::map<std::uint64_t, lease_ptr> leases;
    std::uint64_t last_number = 0, last_group = 0;
    std::optional<known_group> group;
    std::optional<std::string> waits;   ///< no nodes could hold the group
    std::optional<std::string> refused; ///< there can be no such group
    std::vector<std::size_t> bundle_of; ///< by rank
    std::size_t printing = 0;
    scope keeping, beside; ///< the link; what prints and looks
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
    proc::process_usage usage() override { return {}; }
    std::unique_ptr<net::stream> take_stream() override { return nullptr; }
    task<std::size_t> read_output(bool, std::span<std::byte>) override { co_return 0; }

private:
    std::shared_ptr<state> of_;
    lease_ptr lease_;
};

SKEIN_INLINE leased_ranks::state::state(loop& on, net::network& via, leased_ranks_options given)
    : on_loop(on), how(std::move(given)), head(on, via, link_options(), &stopping) {
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
    o.make_service = [this] { return make_service(); };
    o.say_hello = [this] { return say_hello(this); };
    o.on_away = [at = to_string(how.head)](const error& why, bool was_joined) {
        if (was_joined)
            logging::warn("cluster", "the head is away; ranks go on",
                          {{"head", at}, {"why", why.what()}});
    };
    return o;
}

// ---- the link to the head -----------------------------------------------------------------------

SKEIN_INLINE task<void> leased_ranks::state::keep(state* self) {
    try {
        auto joining = self->head.keep();
        co_await joining;
        self->over = error(errc::closed, "the cluster was stopped");
    } catch (const error& e) {
        if (e.code() == errc::cancelled) throw;
        self->over = detail::no_cluster_for_driver(self->how.head, e);
    }
    self->lose_all(self->over->text());
    self->changed.set();
}

/// Nobody tells of their ends any more.
SKEIN_INLINE task<void> leased_ranks::state::watch_head(state* self) {
    for (;; co_await sleep_for(std::chrono::seconds(1)))
        if (!self->head.is_joined() && self->head.was_welcomed() &&
            self->on_loop.now() >= deadline_after(self->head.alone_since(), self->ranks_lost_after))
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
        if (l->node != 0) continue;
        (void)head.tell(return_lease{number, true});
        end(l, {proc::exit_status(), {}, "its place was lost before it had started: " + why});
    }
}

/// The link was lost between a wish and its answer. Whether the rank began, and has ended since, is
/// not known, and nobody is to start it twice; the head takes back what the hello is without.
SKEIN_INLINE void leased_ranks::state::lose_untold() {
    const auto all = leases;
    for (const auto& [number, l] : all)
        if (l->node == 0 && l->is_wished)
            end(l, {proc::exit_status(), {}, "the link to the head broke as it was being started"});
}

SKEIN_INLINE std::shared_ptr<net::request_service> leased_ranks::state::make_service() {
    auto out = std::make_shared<net::request_service>(net::request_service::bounds(),
                                                      detail::cluster_budget());
    out->on_tell<lease_granted>([this](const lease_granted& m, const net::caller&) {
        const auto found = leases.find(m.lease);
        if (found == leases.end()) return; // it was given back; the head hears so
        auto& l = *found->second;
        if (std::exchange(l.node, m.node) == 0) l.name += " on " + m.node_name;
    });
    out->on_tell<lease_ended>([this](const lease_ended& m, const net::caller&) { on_ended(m); });
    out->on_tell<worker_output>(
        [this](worker_output m, const net::caller&) { on_output(std::move(m)); });
    out->on_tell<group_placed>([this](const group_placed& m, const net::caller&) {
        if (!group || m.group != group->number) return; // it was dropped; the head hears so
        if (m.bundles.size() == group->bundles.size()) group->placed = m.bundles;
        changed.set();
    });
    out->on_tell<group_waits>([this](const group_waits& m, const net::caller&) {
        if (!group || m.group != group->number) return;
        if (!group->placed.empty()) return lose_waiting(m.why);
        waits = m.why;
        changed.set();
    });
    out->on_tell<group_refused>([this](const group_refused& m, const net::caller&) {
        if (!group || m.group != group->number) return;
        refused = m.why;
        changed.set();
    });
    out->on_tell<lease_recalled>([this](const lease_recalled& m, const net::caller&) {
        if (!m.withdrawn) (void)head.tell(keep_lease{m.lease}); // it ends with the training
    });
    out->on_tell<lease_waits>([](const lease_waits&, const net::caller&) {}); // its group has room
    out->on_tell<cluster_changed>([](const cluster_changed&, const net::caller&) {});
    out->on_tell<space_lost>([](const space_lost&, const net::caller&) {});
    return out;
}

SKEIN_INLINE driver_hello leased_ranks::state::hello() const {
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
    h.prints = static_cast<bool>(how.print);
    h.again = head.was_welcomed();
    if (group) h.groups.push_back(*group);
    for (const auto& [number, l] : leases) {
        if (l->node == 0) continue; // see say_hello()
        known_lease k;
        k.number = number;
        k.demand = demand;
        k.node = l->node;
        k.label = l->label;
        k.own = true;
        h.leases.push_back(std::move(k));
    }
    return h;
}

SKEIN_INLINE task<void> leased_ranks::state::say_hello(state* self) {
    self->lose_untold();
    const auto h = self->hello();
    auto joining = self->head.join<driver_welcome>(h);
    const auto w = co_await joining;
    self->ranks_lost_after = std::max<duration>(
        detail::ranks_lost_after,
        std::chrono::milliseconds(std::min(w.lost_after_ms, detail::most_lost_after_ms)) +
            std::chrono::seconds(15));
    // What has changed while the hello was under way.
    for (const auto& one : h.leases)
        if (!self->leases.contains(one.number)) (void)self->head.tell(return_lease{one.number});
    const auto number = self->group ? self->group->number : 0;
    for (const auto& g : h.groups)
        if (g.number != number) (void)self->head.tell(cluster::drop_group{g.number});
    const bool is_told = !h.groups.empty() && h.groups.front().number == number;
    if (self->group && !is_told)
        (void)self->head.tell(
            cluster::want_group{number, self->group->strategy, self->group->bundles});
    for (const auto& [n, l] : self->leases) {
        if (!l->is_wished) l->is_wished = self->head.tell(self->wish(*l));
        if (l->asked) (void)self->head.tell(return_lease{n, l->ends_now});
    }
    self->runs = w.runs;
    self->this_host_only = self->head.notice().this_host_only;
    self->changed.set();
}

// ---- ranks --------------------------------------------------------------------------------------

SKEIN_INLINE want_lease leased_ranks::state::wish(const lease& l) const {
    want_lease out;
    out.lease = l.number;
    out.demand = demand;
    out.label = l.label;
    out.own = true;
    out.rank = l.rank;
    return out;
}

SKEIN_INLINE void leased_ranks::state::end(const lease_ptr& l, proc::child_end how_it_was) {
    leases.erase(l->number);
    if (l->end) return;
    l->end = std::move(how_it_was);
    l->over.set();
}

/// One that has not been granted ends here and now: the head says nothing of it any more.
SKEIN_INLINE void leased_ranks::state::ask_to_end(lease& l, bool at_once) {
    if (l.end || (l.asked && (l.ends_now || !at_once))) return;
    l.asked = true;
    l.ends_now = at_once;
    (void)head.tell(return_lease{l.number, at_once});
    const auto found = leases.find(l.number);
    if (found == leases.end()) return;
    if (at_once && l.node != 0 && !head.is_joined()) // its group is over, and it ends with that
        return end(lease_ptr(found->second),
                   {proc::exit_status(), {}, "the head is away, and cannot have it ended"});
    if (l.node == 0)
        end(lease_ptr(found->second),
            {proc::exit_status(), {}, "it had not been started yet", false, true});
}

SKEIN_INLINE void leased_ranks::state::on_ended(const lease_ended& m) {
    const auto found = leases.find(m.lease);
    if (found == leases.end()) return;
    const auto l = found->second;
    if (how.print && m.lines >= l->next_line) { // what nobody has sent
        proc::worker_lines rest;
        rest.worker = l->name;
        rest.left_out = m.lines + 1 - l->next_line;
        ++printing;
        beside.spawn(print(this, {std::move(rest)}, 0));
    }
    if (!m.started || (m.code < 0 && m.signal == 0))
        return end(
            l,
            {proc::exit_status(), {}, m.how, m.is_lasting && !m.started, l->asked && !m.started});
    const proc::exit_status status(m.signal != 0 ? m.signal : m.code << 8);
    end(l, {status, m.how == status.describe() ? std::string() : m.how});
}

/// The head sends as much as it was told that has been printed: few of these are here at a time.
SKEIN_INLINE void leased_ranks::state::on_output(worker_output m) {
    if (!how.print) return;
    std::vector<proc::worker_lines> all;
    for (auto& some : m.from) {
        proc::worker_lines out;
        out.node = m.node_name;
        if (const auto found = leases.find(some.lease); found != leases.end()) {
            auto& l = *found->second;
            out.worker = l.name;
            out.left_out = some.first > l.next_line ? some.first - l.next_line : 0;
            l.next_line = some.first + some.lines.size();
        }
        out.lines = std::move(some.lines);
        all.push_back(std::move(out));
    }
    ++printing;
    beside.spawn(print(this, std::move(all), m.node));
}

SKEIN_INLINE task<void> leased_ranks::state::print(state* self,
                                                   std::vector<proc::worker_lines> what,
                                                   std::uint64_t node) {
    auto printed = as_result(self->how.print(std::move(what)));
    (void)co_await printed;
    if (node != 0) (void)self->head.tell(output_printed{node});
    --self->printing;
    self->changed.set();
}

// ---- places -------------------------------------------------------------------------------------

/// Ranks of one node have numbers in a row, and the nodes come in the order of the bundles.
SKEIN_INLINE std::vector<spmd::rank_place> leased_ranks::state::places() {
    const auto& placed = group->placed;
    std::vector<std::uint64_t> nodes;
    for (const auto& b : placed)
        if (std::find(nodes.begin(), nodes.end(), b.node) == nodes.end()) nodes.push_back(b.node);
    std::vector<spmd::rank_place> all;
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

SKEIN_INLINE task<std::vector<spmd::rank_place>> leased_ranks::state::reserve(state* self,
                                                                              int ranks) {
    auto& g = self->group.emplace();
    g.number = ++self->last_group;
    g.strategy = static_cast<std::uint8_t>(sched::group_strategy::pack);
    g.bundles.assign(static_cast<std::size_t>(ranks), self->demand);
    self->waits.reset();
    self->refused.reset();
    (void)self->head.tell(cluster::want_group{g.number, g.strategy, g.bundles});
    std::string said;
    const auto say = [&](std::string why) {
        if (why != said && self->how.on_wait) self->how.on_wait(why);
        said = std::move(why);
    };
    const auto patient = deadline_after(self->on_loop.now(), std::chrono::seconds(2));
    while (g.placed.empty()) {
        if (self->over) throw *self->over;
        if (self->refused) throw error(errc::exhausted, *self->refused);
        if (self->waits)
            say(*self->waits);
        else if (self->on_loop.now() >= patient)
            say(fmt::format("no room yet for {} ranks of {} each: others have the nodes", ranks,
                            self->demand));
        self->changed.reset();
        auto news = detail::wait_at_most(&self->changed, std::chrono::seconds(2));
        co_await news;
    }
    if (!said.empty()) say({});
    co_return self->places();
}

SKEIN_INLINE void leased_ranks::state::drop_group() {
    if (!group) return;
    (void)head.tell(cluster::drop_group{group->number}); // else the next hello is without it
    group.reset();
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
    if (self->runs->empty())
        throw error(errc::not_supported,
                    fmt::format("not supported: ranks on the nodes of {} without a folder for runs "
                                "that all of them see",
                                to_string(self->how.head)))
            .with_hint("start the head with --runs DIR, or set SKEIN_ADDRESS=local to train on "
                       "this host");
    self->beside.spawn(state::watch_head(self));
}

SKEIN_INLINE task<std::vector<spmd::rank_place>> leased_ranks::reserve(int ranks) {
    auto* const self = state_.get();
    try {
        auto reserving = state::reserve(self, ranks);
        co_return co_await reserving;
    } catch (...) {
        self->drop_group();
        throw;
    }
}

SKEIN_INLINE net::address leased_ranks::listen(int) const {
    return detail::driver_door(state_->this_host_only, state_->how.head, 0);
}

SKEIN_INLINE net::token leased_ranks::secret(int attempt) const {
    return detail::group_secret(detail::job_secret(state_->how.secret, state_->how.incarnation),
                                static_cast<std::uint32_t>(attempt));
}

SKEIN_INLINE task<std::unique_ptr<proc::child>> leased_ranks::start(int rank,
                                                                    spmd::rank_start what) {
    auto& self = *state_;
    const auto l = std::make_shared<state::lease>();
    l->number = ++self.last_number;
    l->name = fmt::format("worker {}", rank);
    const auto bundle = static_cast<int>(self.bundle_of.at(static_cast<std::size_t>(rank)));
    l->label = sched::group_label(self.group->number, bundle);
    const auto joined = [](const auto& pair) { return pair.first + "=" + pair.second; };
    for (const auto& one : what.variables) l->rank.place.push_back(joined(one));
    for (const auto& one : what.env) l->rank.env.push_back(joined(one));
    const auto names_runs = [](const auto& one) { return one.first == runs_variable; };
    if (std::none_of(what.env.begin(), what.env.end(), names_runs))
        l->rank.env.push_back(fmt::format("{}={}", runs_variable,
                                          self.how.runs.empty() ? *self.runs : self.how.runs));
    l->rank.argv = what.argv.empty() ? own_arguments() : std::move(what.argv);
    l->rank.port = what.group.port;
    l->rank.attempt = static_cast<std::uint32_t>(what.attempt);
    l->rank.threads = static_cast<std::uint16_t>(std::clamp(what.threads, 0, 0xffff));
    const auto most = std::min<time_span>(what.stop_grace, detail::most_stop_grace);
    l->rank.stop_millis = static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(duration(most)).count());
    self.leases.emplace(l->number, l);
    if (self.over)
        self.end(l, {proc::exit_status(), {}, self.over->text()});
    else
        l->is_wished = self.head.tell(self.wish(*l)); // else with the next hello
    co_return std::make_unique<state::rank_child>(state_, l);
}

SKEIN_INLINE void leased_ranks::release() {
    const auto all = state_->leases;
    for (const auto& [number, l] : all) state_->ask_to_end(*l, true);
    state_->drop_group();
}

SKEIN_INLINE task<void> leased_ranks::close() {
    auto* const self = state_.get();
    const auto until = deadline_after(self->on_loop.now(), self->how.times.dead_after);
    while (self->printing != 0 && self->on_loop.now() < until) { // a terminal may be slow
        self->changed.reset();
        auto printed = detail::wait_at_most(&self->changed, until - self->on_loop.now());
        co_await printed;
    }
    self->stopping.set();
    auto left = as_result(with_timeout(self->keeping.join(), self->how.times.suspect_after));
    (void)co_await left; // it may be dialling a host that does not answer
    for (auto* some : {&self->keeping, &self->beside}) {
        some->cancel();
        auto ended = as_result(shield(some->join()));
        (void)co_await ended;
    }
    auto parting = as_result(shield(self->head.part()));
    (void)co_await parting;
}

} // namespace skein::cluster
