// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cluster in the simulated world: a head, nodes with agents and worker processes, drivers. All of
// them run their real code, in virtual time; each can be killed and started again.
//
//     // two nodes
//     test::in_cluster(1, 2, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
//         auto r = remote<&f>(7);
//         const int got = co_await r;
//         CHECK(got == 7);
//     });

#include <skein/cluster/agent.hpp>
#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/head.hpp>
#include <skein/cluster/head_log.hpp>
#include <skein/cluster/leased_workers.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/cluster/space_server.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/time.hpp>
#include <skein/proc/host_load.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/runtime_context.hpp>
#include <skein/sim/children.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::test {

/// Must outlive the loop's run of its run().
class sim_nodes {
public:
    sim_nodes(sim::loop& loop, sim::network& network)
        : loop_(loop), network_(network), secret_(net::token::generate(loop.random())) {
        head_defaults.lost_after = std::chrono::seconds(6); // most tests do not wait for more
    }

    /// One process that is a role: killed by cancelling it, after its sockets have gone.
    template <class Role>
    struct life {
        std::unique_ptr<Role> role;
        cancel_source stop;
        scope running;
        std::optional<error> failure;
        bool over = false;
    };
    using head_life = life<cluster::head>;
    struct node {
        std::string host;
        std::unique_ptr<sim::children> children;
        std::unique_ptr<life<cluster::agent>> agent; ///< nullptr: it is dead
    };
    /// How busy a host is, by the model: its processes compute on one core each.
    class model_host final : public proc::host_watch {
    public:
        explicit model_host(const node& of) : of_(of) {}
        proc::host_load sample(time_point now) override {
            const auto there = of_.children->resources();
            const auto run = static_cast<double>(of_.children->running().size());
            const auto seconds = std::floor(to_seconds(now.time_since_epoch()));
            proc::host_load out;
            out.cpu = std::min(1.0, run / there.cores);
            out.memory_total = static_cast<double>(there.memory_bytes);
            out.memory_used = std::min(out.memory_total, run * (1 << 20));
            out.network_received = seconds * 100;
            out.network_receive_rate = 100;
            out.network_sent = 0;
            out.network_send_rate = 0;
            return out;
        }

    private:
        const node& of_; // of its children: an agent that is started again has the same ones
    };
    /// A driver's process.
    struct driver {
        driver(sim_nodes& c, std::string where, cluster::leased_workers_options how)
            : host(std::move(where)), home(c.network_.loop_of(host)), self(options_of(c, host)),
              workers(home, c.network_.host(host), self, std::move(how)) {
            self.on_first_call([this] {
                started = true;
                services.spawn(workers.serve());
            });
            self.ask(&workers);
        }
        std::string host;
        skein::loop& home; ///< what it runs on, by its host's clock
        rt::runtime self;
        cluster::leased_workers workers;
        scope services;
        bool started = false;

        /// As rt::run() ends a driver.
        task<void> end() {
            workers.stop();
            auto goodbye = self.close();
            co_await goodbye;
            services.cancel();
            auto joined = as_result(services.join());
            (void)co_await joined;
        }

    private:
        static rt::runtime_options options_of(sim_nodes& c, const std::string& host) {
            rt::runtime_options who;
            who.host = host;
            who.pid = 1;
            who.incarnation = c.loop_.random().next();
            return who;
        }
    };

    [[nodiscard]] sim::loop& loop() noexcept { return loop_; }
    [[nodiscard]] sim::network& network() noexcept { return network_; }
    [[nodiscard]] const net::token& secret() const noexcept { return secret_; }
    [[nodiscard]] static net::address head_address() { return net::address::sim("head", 1); }
    [[nodiscard]] cluster::head& head() { return *head_->role; }
    [[nodiscard]] bool has_head() const noexcept { return head_ != nullptr; }
    [[nodiscard]] node& at(std::size_t i) { return *nodes_[i]; }
    [[nodiscard]] std::size_t nodes() const noexcept { return nodes_.size(); }
    /// Worker processes that run, on all nodes.
    [[nodiscard]] std::size_t processes() const {
        std::size_t n = 0;
        for (const auto& one : nodes_) n += one->children->running().size();
        return n;
    }

    cluster::head_options head_defaults;
    skein::disk* head_disk = nullptr; ///< each head has its log there, if it is set
    cluster::log_bounds head_log_bounds;
    time_constants agent_times;
    sched::resources agent_offers; ///< of each node, beside its cpus and memory
    /// What an agent of that host is started with besides.
    std::function<void(cluster::agent_options&, const std::string& host)> dress_agent;
    cluster::agent_options agent_defaults() {
        cluster::agent_options o;
        o.head = head_address();
        o.secret = secret_;
        o.times = agent_times;
        o.offers = agent_offers;
        return o;
    }

    /// A head with a short log on this disk, and starts that may hang for a while.
    void use_log(skein::disk& disk) {
        head_disk = &disk;
        head_log_bounds.grown = 2000;
        head_log_bounds.times = 1;
        agent_times.start_timeout = std::chrono::seconds(5);
        head_defaults.times.start_timeout = std::chrono::seconds(20);
        head_defaults.news = logging::level::debug;
    }

    void start_head() {
        auto how = head_defaults;
        how.listen = head_address();
        how.secret = secret_;
        how.host = "head";
        how.incarnation = loop_.random().next();
        if (head_disk != nullptr)
            how.log = std::make_shared<cluster::head_log>(*head_disk, "state", head_log_bounds);
        auto& there = network_.loop_of("head");
        const loop::use on_its_host(there);
        auto made = std::make_unique<head_life>(); // may throw for its log
        made->role = std::make_unique<cluster::head>(there, network_.host("head"), std::move(how));
        head_ = std::move(made);
        head_->running.spawn(hold(head_.get()));
    }
    /// As `skein status --jobs` shows them.
    task<std::vector<cluster::past_job>> past_jobs() {
        cluster::tool_options how;
        how.head = head_address();
        how.secret = secret_;
        how.host = "tool";
        how.pid = 1;
        auto asking = cluster::ask_for_status(network_.host("tool"), std::move(how), true);
        auto now = co_await asking;
        co_return std::move(now.past);
    }
    /// The process dies; what it had connected breaks.
    task<void> kill_head() {
        if (head_) network_.crash("head");
        auto cancelled = cancel_head();
        co_await cancelled;
    }
    task<void> cancel_head() {
        auto ended = cancel(std::exchange(head_, nullptr), "head");
        co_await ended;
    }

    /// Another host. Its agent starts; `cpus` of it.
    node& add_node(int cpus = 2) { return add_node(cpus, agent_defaults()); }
    node& add_node(int cpus, cluster::agent_options how) {
        auto made = std::make_unique<node>();
        made->host = "n" + std::to_string(nodes_.size() + 1);
        made->children = std::make_unique<sim::children>(
            network_, made->host, proc::host_resources{cpus, std::uint64_t{8} << 30});
        made->children->add(rt::worker_role, &worker_program);
        made->children->add(rt::space_server_role, &space_server_program);
        if (dress_agent) dress_agent(how, made->host);
        nodes_.push_back(std::move(made));
        start_agent(*nodes_.back(), std::move(how));
        return *nodes_.back();
    }
    void start_agent(node& n) {
        auto how = agent_defaults();
        if (dress_agent) dress_agent(how, n.host);
        start_agent(n, std::move(how));
    }
    void start_agent(node& n, cluster::agent_options how) {
        how.host = n.host;
        how.pid = 1;
        how.watch = std::make_shared<model_host>(n);
        how.incarnation = loop_.random().next();
        auto& there = network_.loop_of(n.host);
        const loop::use on_its_host(there);
        n.agent = std::make_unique<life<cluster::agent>>();
        n.agent->role = std::make_unique<cluster::agent>(there, network_.host(n.host), *n.children,
                                                         std::move(how));
        n.agent->running.spawn(hold(n.agent.get()));
    }
    /// kill -9: workers die with their agent. machine: the host goes silently.
    task<void> kill_agent(node& n, bool machine = false) {
        if (!n.agent) co_return;
        network_.crash(n.host, !machine);
        for (const auto& one : n.children->running()) n.children->kill(one.pid);
        auto ended = cancel(std::exchange(n.agent, nullptr), n.host);
        co_await ended;
    }

    /// Another host, where processes fail to start, hang, stand still and die; nothing of it lasts.
    node& add_breaking_node(int cpus) {
        auto& made = add_node(cpus);
        auto& faults = made.children->faults();
        faults = sim::child_faults::draw(loop_.random());
        faults.not_found = faults.not_permitted = 0;
        made.children->begin_faults();
        return made;
    }
    /// An agent dies, alone or with its machine, and another one starts there within 5 s.
    task<void> replace_agent(node& n, bool machine) {
        network_.counts().add(machine ? sim::fault::crash : sim::fault::kill);
        auto killed = kill_agent(n, machine);
        co_await killed;
        co_await sleep_for(std::chrono::milliseconds(loop_.random().below(5000)));
        start_agent(n);
    }
    /// No faults any more, and agents where they have given up or are dead.
    task<void> be_calm() {
        network_.stop_faults();
        for (const auto& n : nodes_) {
            n->children->stop_faults();
            if (n->agent && !n->agent->over) continue;
            auto gone = kill_agent(*n);
            co_await gone;
            start_agent(*n);
        }
    }
    /// Ends the cluster, once no process is left and the head knows no job, or after so long; says
    /// what was left.
    task<std::string> end_when_empty(duration most) {
        const auto last = loop_.now() + most;
        const auto jobs = [&] { return head().status().jobs.size(); };
        while ((processes() != 0 || jobs() != 0) && loop_.now() < last)
            co_await sleep_for(std::chrono::milliseconds(100));
        std::string left;
        if (processes() != 0 || jobs() != 0)
            left = fmt::format("{} processes are left, and the head knows {} jobs", processes(),
                               jobs());
        auto all = end();
        co_await all;
        co_return left;
    }

    /// A driver on a host of its own; its workers come with the first call.
    std::unique_ptr<driver> make_driver(const std::string& host, int workers = 0,
                                        cluster::leased_workers_options how = {}) {
        how.head = head_address();
        if (how.secret.empty()) how.secret = secret_; // else: a key of it
        how.name = host;
        how.workers = workers;
        how.executable = "/app";
        how.listen = net::address::sim(host, 0);
        const loop::use on_its_host(network_.loop_of(host));
        return std::make_unique<driver>(*this, host, std::move(how));
    }

    /// Ends what is left in order: agents are told by the head, if there is one.
    task<void> end() {
        auto headless = stop(&head_, "head");
        co_await headless;
        for (const auto& n : nodes_) {
            auto left = stop(&n->agent, n->host);
            co_await left;
        }
    }

private:
    /// Lets it end in order.
    template <class Role>
    task<void> stop(std::unique_ptr<life<Role>>* one, std::string host) {
        if (!*one) co_return;
        {
            const loop::use on_its_host(network_.loop_of(host));
            (*one)->role->stop();
        }
        auto left = shield((*one)->running.join());
        co_await left;
        const loop::use on_its_host(network_.loop_of(host));
        one->reset();
    }
    template <class Role>
    task<void> cancel(std::unique_ptr<life<Role>> dying, std::string host) {
        if (!dying) co_return;
        {
            const loop::use on_its_host(network_.loop_of(host));
            dying->stop.request();
        }
        auto ended = shield(dying->running.join());
        co_await ended;
        const loop::use on_its_host(network_.loop_of(host));
        dying.reset();
    }

    template <class Role>
    static task<void> hold(life<Role>* one) {
        try {
            auto serving = with_cancel(one->stop.token(), one->role->serve());
            co_await serving;
        } catch (const error& e) {
            one->failure = e;
        }
        one->over = true;
    }

    sim::loop& loop_;
    sim::network& network_;
    net::token secret_;
    std::unique_ptr<head_life> head_;
    std::vector<std::unique_ptr<node>> nodes_;

public:
    /// The simulated process in which a remote function runs; nullptr: in none, or in one that is
    /// ending.
    static sim::process* this_process() {
        const auto here = runtime_context();
        const auto found = processes_here().find({here.host, here.pid});
        return found == processes_here().end() ? nullptr : found->second;
    }

private:
    static std::map<std::pair<std::string, std::int64_t>, sim::process*>& processes_here() {
        static thread_local std::map<std::pair<std::string, std::int64_t>, sim::process*> all;
        return all;
    }
    static std::map<std::string, int>& space_servers_here() {
        static thread_local std::map<std::string, int> all;
        return all;
    }
    struct life_of_space_server {
        explicit life_of_space_server(std::string of) : space(std::move(of)) {
            ++space_servers_here()[space];
        }
        life_of_space_server(const life_of_space_server&) = delete;
        ~life_of_space_server() { --space_servers_here()[space]; }
        std::string space;
    };
    struct process_entry {
        explicit process_entry(sim::process* p) : key(p->host(), p->pid()) {
            processes_here()[key] = p;
        }
        process_entry(const process_entry&) = delete;
        ~process_entry() { processes_here().erase(key); }
        std::pair<std::string, std::int64_t> key;
    };

public:
    /// What run_space_server() does in a real process.
    static task<int> space_server_program(sim::process* self) {
        auto order = wire::decode<cluster::space_server_order>(self->started_with().message);
        if (!order) throw order.error();
        cluster::space_server_options how;
        how.order = *order;
        how.host = self->host();
        how.pid = self->pid();
        how.listen = net::address::sim(self->host(), 0);
        const life_of_space_server here(order->space);
        cluster::space_server k(loop::current(), self->network(), std::move(how));
        auto serving = k.serve();
        co_await serving;
        co_return 0;
    }
    /// Space servers of that namespace that have not ended.
    [[nodiscard]] static int space_servers(const std::string& space) {
        return space_servers_here()[space];
    }
    /// What worker_main() does in a real process.
    static task<int> worker_program(sim::process* self) {
        const process_entry entry(self);
        rt::runtime_options who;
        who.name = self->started_with().name;
        who.host = self->host();
        who.pid = self->pid();
        who.incarnation = loop::current().random().next();
        rt::runtime mine(who);
        auto working = program::work_for_driver(&self->network(), &mine,
                                                self->started_with().message, nullptr, {});
        co_await working;
        co_return 0;
    }
};

/// Runs body(cluster) in a world without faults, which has nothing in it yet; ends what is left of
/// it then.
template <class Body>
void in_world_of_nodes(std::uint64_t seed, Body body) {
    sim::loop loop(seed);
    sim::network network(loop, sim::faults{});
    sim_nodes c(loop, network);
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives the run
    const auto all = [&]() -> task<void> {
        std::exception_ptr failure;
        try {
            auto work = body(c);
            co_await work;
        } catch (...) {
            failure = std::current_exception();
        }
        auto ended = c.end();
        co_await ended;
        if (failure) std::rethrow_exception(failure);
    };
    loop.run(all());
    if (c.processes() != 0 || network.open_streams() != 0)
        throw error(errc::internal, fmt::format("left behind: {} processes, {} streams",
                                                c.processes(), network.open_streams()));
}

/// As `skein drain` does; gives the answer.
inline task<cluster::drain_reply> ask_drain(sim_nodes* c, cluster::ask_drain what) {
    auto dialing =
        net::link::connect(c->network().host("tool"), c->head_address(),
                           cluster::detail::cluster_link(c->secret(), "tool", "tool", 1));
    auto l = co_await dialing;
    auto tool = net::requests::over(l);
    auto asking = as_result(tool->call<cluster::drain_reply>(std::move(what)));
    auto asked = co_await asking;
    auto closing = shield(tool->close());
    co_await closing;
    if (!asked) throw asked.error();
    co_return *asked;
}

/// As `skein drain` does.
inline task<void> drain(sim_nodes* c, std::string node, bool on) {
    auto dialing =
        net::link::connect(c->network().host("tool"), c->head_address(),
                           cluster::detail::cluster_link(c->secret(), "tool", "tool", 1));
    auto l = co_await dialing;
    auto tool = net::requests::over(l);
    auto asked = tool->call<cluster::drain_reply>(cluster::ask_drain{std::move(node), on});
    co_await asked;
    auto closing = tool->close();
    co_await closing;
}

/// Runs body() as a driver's tasks, and ends the driver.
template <class Body>
task<void> drive_here(sim_nodes::driver* d, Body body) {
    std::exception_ptr failure;
    try {
        auto work = d->self.run_here(body());
        co_await work;
    } catch (...) {
        failure = std::current_exception();
    }
    auto ended = d->end();
    co_await ended;
    if (failure) std::rethrow_exception(failure);
}
/// The same on its host, by the clock there.
template <class Body>
task<void> as_driver(sim_nodes::driver* d, Body body) {
    auto driving = sim::run_on(d->home, drive_here(d, std::move(body)));
    co_await driving;
}

/// Runs body(cluster, driver) as a driver's tasks, on a cluster of so many nodes without faults.
template <class Body>
void in_cluster(std::uint64_t seed, int nodes, Body body, int cpus = 2, int workers = 0) {
    in_world_of_nodes(seed, [&](sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        c.start_head();
        for (int i = 0; i < nodes; ++i) c.add_node(cpus);
        const auto d = c.make_driver("driver", workers);
        auto driving = as_driver(d.get(), [&] { return body(c, *d); });
        co_await driving;
    });
}

} // namespace skein::test
