// SPDX-License-Identifier: Apache-2.0
#pragma once
// A driver and N workers on the simulated loop and network: the runtime's own protocol code, in
// virtual time, with workers that can be killed and hosts that can be cut off.
//
//     test::in_sim(1, 2, [](test::sim_cluster& c) -> task<void> {
//         auto r = remote<&f>(7);
//         const int got = co_await r;
//         CHECK(got == 7);
//     });
//
// All runtimes share one thread: calls go through the runtime of the task that makes them.

#include <tests/support/sim_volume.hpp>

#include <skein/core/constants.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/connection.hpp>
#include <skein/objects/far_objects.hpp>
#include <skein/objects/store.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/sim/disk.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::test {

/// Must outlive the loop's run of its run().
class sim_cluster {
public:
    /// credit_calls, credit_bytes: see rt::runtime_options.
    sim_cluster(sim::loop& loop, sim::network& network, int workers, std::uint16_t cpus = 1,
                std::uint32_t credit_calls = limit::credit_calls,
                std::size_t credit_bytes = limit::credit_bytes)
        : loop_(loop), network_(network), credit_calls_(credit_calls), credit_bytes_(credit_bytes),
          driver_(options_of(loop, "driver", 1)), cpus_(cpus),
          workers_(static_cast<std::size_t>(workers)),
          secret_(net::token::generate(loop.random())) {}

    [[nodiscard]] rt::runtime& driver() noexcept { return driver_; }
    [[nodiscard]] sim::loop& loop() noexcept { return loop_; }
    [[nodiscard]] sim::network& network() noexcept { return network_; }
    [[nodiscard]] int workers() const noexcept { return static_cast<int>(workers_.size()); }
    [[nodiscard]] static std::string host_of(int worker) { return "w" + std::to_string(worker); }
    /// The process of worker i (from 0) that lives now.
    [[nodiscard]] rt::runtime& process_of(int i) { return *workers_[std::size_t(i)].self; }
    [[nodiscard]] const net::token& secret() const noexcept { return secret_; }
    /// How often worker i (from 0) has been started.
    [[nodiscard]] int incarnation(int i) const { return workers_[std::size_t(i)].incarnation; }
    /// Of the process of worker i that lives now.
    [[nodiscard]] std::uint64_t incarnation_id(int i) const {
        return workers_[std::size_t(i)].self->incarnation();
    }
    /// Frames above this size are refused; before run().
    void limit_frames(std::size_t bytes) { max_frame_ = bytes; }
    /// Workers and driver share no memory, as on several hosts; before run().
    void share_no_memory() { shares_memory_ = false; }
    /// All have a store of so many bytes in common, as on one host; before run().
    ///   disk  for what finds no room; must outlive this
    void share_store(std::uint64_t bytes, sim::disk* disk = nullptr) {
        memory_ = objects::arena::in_memory(bytes);
        std::unique_ptr<objects::spill_volume> files;
        if (disk != nullptr) files = std::make_unique<sim_volume>(*disk);
        store_.emplace(memory_, loop_.random().next() | 1, objects::store_times(),
                       std::move(files));
    }
    /// The driver and so many nodes with workers have stores of so many bytes each, as on a cluster;
    /// worker i is on node 1 + i % nodes. Before run().
    void share_stores(std::uint64_t bytes, int nodes) {
        store_bytes_ = bytes;
        nodes_.resize(static_cast<std::size_t>(nodes) + 1);
    }
    [[nodiscard]] int nodes() const noexcept { return static_cast<int>(nodes_.size()); }
    [[nodiscard]] static std::string host_of_node(int node) {
        return "node" + std::to_string(node);
    }
    /// Of a node that lives: else nothing.
    [[nodiscard]] objects::far_objects* far_of(int node) {
        return nodes_[std::size_t(node)] ? &*nodes_[std::size_t(node)]->far : nullptr;
    }
    [[nodiscard]] objects::spill_usage stored_in_files() const {
        return store_ ? store_->files() : objects::spill_usage();
    }
    [[nodiscard]] objects::store_usage stored() const {
        if (nodes_.empty()) return store_->usage();
        objects::store_usage sum;
        for (const auto& one : nodes_) {
            // Without the driver's store it serves nobody any more: its agent ends it.
            const bool is_cut_off = &one != &nodes_.front() && one && !one->far->peers().has_hub();
            if (!one || is_cut_off) continue;
            const auto its = one->store.usage();
            sum.objects += its.objects;
            sum.kept += its.kept;
            sum.pinned += its.pinned;
            sum.away += its.away;
        }
        return sum;
    }
    /// Which node has how many objects of its own, and holds how many of others.
    [[nodiscard]] std::string describe_stores() {
        std::string out;
        for (int i = 0; i < nodes(); ++i) {
            const auto& one = nodes_[std::size_t(i)];
            if (one)
                out += fmt::format("; {}: {} objects, {} of others", host_of_node(i),
                                   one->store.usage().objects, one->far->statistics().held);
        }
        return out;
    }
    /// Its host dies, with its store and its workers; another one takes its place.
    task<void> kill_node(int node) {
        network_.crash(host_of_node(node), loop_.random().below(2) == 0);
        for (int i = 0; i < workers(); ++i)
            if (node_of(i) == node) kill(i);
        auto ending = end_node(node);
        co_await ending;
        begin_node(node);
    }
    /// Each store has a link with each other one.
    [[nodiscard]] bool are_stores_linked() const {
        std::size_t links = 0;
        for (const auto& one : nodes_)
            if (one) links += one->far->peers().linked();
        return links == nodes_.size() * (nodes_.size() - 1);
    }
    /// All calls of workers go through the driver; before run().
    void call_through_driver() { calls_directly_ = false; }
    /// Calls that run as coroutines on workers now.
    [[nodiscard]] std::size_t running() const {
        std::size_t n = 0;
        for (const auto& w : workers_)
            if (w.self != nullptr) n += w.self->running();
        return n;
    }
    [[nodiscard]] std::size_t actors() const {
        std::size_t n = 0;
        for (const auto& w : workers_)
            if (w.self != nullptr) n += w.self->actors();
        return n;
    }

    /// A connection to the driver that shook hands like a worker, for tests of what a broken one
    /// sends.
    task<std::shared_ptr<net::connection>> impostor(std::optional<std::uint64_t> incarnation = {}) {
        auto connecting = net::connection::connect(
            network_.host("impostor"), net::address::sim("driver", 1),
            link_options("impostor", 666, incarnation.value_or(666 + 1000 * impostors_++)));
        co_return co_await connecting;
    }

    /// The worker's process dies: its connections break, what ran there stops; another starts
    /// later.
    void kill(int i) {
        auto& w = workers_[std::size_t(i)];
        if (!w.stop) return;
        network_.counts().add(sim::fault::kill);
        network_.crash(host_of(i)); // its last words do not get out
        const loop::use there(network_.loop_of(host_of(i)));
        w.stop->request();
    }

    /// The same of the process with this pid, if it lives.
    void kill_process(std::int64_t pid) {
        for (int i = 0; i < workers(); ++i)
            if (pid_of(i, incarnation(i)) == pid) kill(i);
    }

    /// The link of worker i's process with the store breaks, if there is one; the process lives.
    void break_store_link(int i) {
        const loop::use there(network_.loop_of(host_of(i)));
        if (const auto wire = store_links_[host_of(i)].lock())
            wire->abort(error(errc::reset, "the link with the store broke"));
    }

    /// Brings the cluster up, runs body(*this), and takes everything down again.
    template <class Body>
    task<void> run(Body body) {
        listener_ = network_.host("driver").listen(net::address::sim("driver", 1));
        driver_.expect_workers(workers_.size());
        scope services;
        if (store_) {
            store_door_ = network_.host("driver").listen(net::address::sim("driver", 2));
            services.spawn(accept_users(&services));
        }
        for (int node = 0; node < nodes(); ++node) begin_node(node);
        if (nodes() != 0) rt::tell_store_number(driver_, nodes_[0]->number);
        const auto objects = join_store("driver", driver_, 0);
        services.spawn(accept_workers(&services));
        for (int i = 0; i < workers(); ++i) services.spawn(live(i));
        std::exception_ptr failure;
        try {
            auto work = driver_.run_here(body(*this));
            co_await work;
        } catch (...) {
            failure = std::current_exception();
        }
        stopping_ = true;
        auto bye = driver_.close();
        co_await bye;
        if (objects) {
            auto left = objects->close();
            co_await left;
        }
        listener_->close();
        if (store_) {
            store_door_->close();
            auto closed = store_->close();
            co_await closed;
        }
        for (int node = 0; node < nodes(); ++node) {
            auto ending = end_node(node);
            co_await ending;
        }
        services.cancel();
        try {
            auto joined = services.join();
            co_await joined;
        } catch (...) {
            if (!failure) failure = std::current_exception();
        }
        listener_.reset();
        store_door_.reset();
        if (failure) std::rethrow_exception(failure);
    }

private:
    struct worker {
        int incarnation = 0;
        rt::runtime* self = nullptr;
        std::optional<cancel_source> stop;
    };

    [[nodiscard]] static std::int64_t pid_of(int i, int incarnation) {
        return 100 * (i + 1) + incarnation;
    }
    rt::runtime_options options_of(sim::loop& loop, std::string name, std::int64_t pid) const {
        rt::runtime_options o;
        o.credit_calls = credit_calls_;
        o.credit_bytes = credit_bytes_;
        o.incarnation = loop.random().next();
        o.name = std::move(name);
        o.host = "sim";
        o.pid = pid;
        return o;
    }
    net::connection_options link_options(const std::string& name, std::int64_t pid,
                                         std::uint64_t incarnation) const {
        rt::detail::worker_hello hello;
        hello.incarnation = incarnation;
        if (name == "driver") hello.store = driver_.hello().store;
        return link_options(name, pid, std::move(hello));
    }
    net::connection_options link_options(const std::string& name, std::int64_t pid,
                                         rt::detail::worker_hello hello) const {
        net::connection_options o;
        o.secret = secret_;
        if (max_frame_ > 0) o.bounds.max_frame = max_frame_;
        o.self.name = name;
        o.self.pid = pid;
        o.self.host = "sim";
        o.self.registry_hash = rt::registry::instance().hash();
        hello.cpus = cpus_;
        hello.shares_memory = shares_memory_;
        o.self.extra = wire::encode(hello);
        return o;
    }

    task<void> accept_workers(scope* into) {
        try {
            while (true) {
                auto next = listener_->accept();
                auto stream = co_await next;
                into->spawn(admit(std::move(stream)));
            }
        } catch (const error&) { // closed
        }
    }
    task<void> admit(std::unique_ptr<net::stream> from) {
        try {
            auto shaken = net::connection::accept(std::move(from),
                                                  link_options("driver", 1, driver_.incarnation()));
            auto wire = co_await shaken;
            const auto shared = pages_.find(wire->peer().pid);
            auto served = driver_.serve_worker(
                wire, nullptr, shared != pages_.end() ? shared->second : proc::claims());
            co_await served;
        } catch (const error&) { // a handshake that a fault broke: the worker comes again
        }
    }

    net::connection_options store_options(objects::process_id self) const {
        net::connection_options o;
        o.secret = secret_;
        o.self.name = "user";
        if (self) o.self.extra = wire::encode(objects::store_hello{self});
        return o;
    }
    task<void> accept_users(scope* into) {
        try {
            while (true) {
                auto next = store_door_->accept();
                auto stream = co_await next;
                into->spawn(serve_user(std::move(stream)));
            }
        } catch (const error&) { // closed
        }
    }
    /// A node's store.
    struct store_node {
        store_node(objects::arena of, std::uint64_t own, net::network& via,
                   objects::store_peer_options how)
            : memory(of), number(own), store(std::move(of), own),
              far(std::in_place, store, via, std::move(how)) {}
        objects::arena memory;
        std::uint64_t number;
        objects::store store;
        std::optional<objects::far_objects> far;
        std::unique_ptr<net::listener> door;
        scope serving;
    };
    [[nodiscard]] int node_of(int worker) const { return 1 + worker % (nodes() - 1); }
    void begin_node(int node) {
        const auto host = host_of_node(node);
        auto& via = network_.host(host);
        objects::store_peer_options how;
        how.secret = secret_;
        how.node = host;
        how.listen = net::address::sim(host, 0);
        how.lost_after = std::chrono::seconds(10);
        auto made = std::make_unique<store_node>(objects::arena::in_memory(store_bytes_),
                                                 loop_.random().next() | 1, via, how);
        made->door = via.listen(net::address::sim(host, 1));
        made->serving.spawn(accept_users_of(made.get()));
        if (node == 0)
            made->far->listen(net::address::sim(host, 0));
        else
            made->far->join(nodes_[0]->far->local(), false);
        nodes_[std::size_t(node)] = std::move(made);
    }
    task<void> end_node(int node) {
        const auto gone = std::exchange(nodes_[std::size_t(node)], nullptr);
        gone->door->close();
        auto parting = shield(gone->far->close());
        co_await parting;
        auto closed = shield(gone->store.close());
        co_await closed;
        gone->serving.cancel();
        auto joined = as_result(shield(gone->serving.join()));
        (void)co_await joined;
        gone->far.reset();
    }
    task<void> accept_users_of(store_node* node) {
        try {
            while (true) {
                auto next = node->door->accept();
                auto stream = co_await next;
                node->serving.spawn(serve_user_of(node, std::move(stream)));
            }
        } catch (const error&) { // closed
        }
    }
    task<void> serve_user_of(store_node* node, std::unique_ptr<net::stream> from) {
        try {
            auto shaken = net::connection::accept(std::move(from), store_options({}));
            auto wire = co_await shaken;
            auto served = node->store.serve(std::move(wire));
            co_await served;
        } catch (const error&) { // it has gone before it came
        }
    }
    task<void> serve_user(std::unique_ptr<net::stream> from) {
        try {
            auto shaken = net::connection::accept(std::move(from), store_options({}));
            auto wire = co_await shaken;
            auto served = store_->serve(std::move(wire));
            co_await served;
        } catch (const error&) { // it has gone before it came
        }
    }
    static task<net::connection::handle> dial_store(sim_cluster* self, std::string host,
                                                    objects::process_id who) {
        auto connecting = net::connection::connect(
            self->network_.host(host), net::address::sim("driver", 2), self->store_options(who));
        auto wire = co_await connecting;
        self->store_links_[host] = wire;
        co_return wire;
    }
    /// Null: there is no store.
    std::shared_ptr<objects::store_client> join_store(const std::string& host, rt::runtime& self,
                                                      int node) {
        const objects::process_id who(self.incarnation());
        if (!nodes_.empty()) {
            auto client = objects::store_client::make(
                network_.loop_of(host), nodes_[std::size_t(node)]->memory, who,
                [this, host, who, node] {
                    return net::connection::connect(network_.host(host),
                                                    net::address::sim(host_of_node(node), 1),
                                                    store_options(who));
                },
                true, nodes_[std::size_t(node)]->number);
            rt::use_store(self, client);
            return client;
        }
        if (!store_) return nullptr;
        auto client =
            objects::store_client::make(network_.loop_of(host), memory_, who,
                                        [this, host, who] { return dial_store(this, host, who); });
        rt::use_store(self, client);
        return client;
    }

    /// One worker's lives, one after the other.
    task<void> live(int i) {
        auto& w = workers_[std::size_t(i)];
        while (!stopping_) {
            ++w.incarnation;
            w.stop.emplace();
            auto once = sim::run_on(network_.loop_of(host_of(i)), one_life(i));
            auto mortal = with_cancel(w.stop->token(), std::move(once));
            auto ended = as_result(std::move(mortal));
            (void)co_await ended;
            if (stopping_) break;
            co_await sleep_for(std::chrono::milliseconds(5));
        }
    }
    task<void> one_life(int i) {
        auto& w = workers_[std::size_t(i)];
        while (!nodes_.empty() && !nodes_[std::size_t(node_of(i))])
            co_await sleep_for(std::chrono::milliseconds(1)); // its node is started again
        const auto name = "worker-" + std::to_string(i + 1);
        const std::int64_t pid = pid_of(i, w.incarnation);
        rt::runtime self(options_of(loop_, name, pid));
        if (!nodes_.empty()) rt::tell_store_number(self, nodes_[std::size_t(node_of(i))]->number);
        if (calls_directly_)
            self.open_to_workers(network_.host(host_of(i)), secret_, {},
                                 net::address::sim(host_of(i), 0));
        if (shares_memory_)
            pages_[pid] = proc::claims(proc::shared_memory::create(proc::claims::bytes));
        auto connecting =
            net::connection::connect(network_.host(host_of(i)), net::address::sim("driver", 1),
                                     link_options(name, pid, self.hello()));
        auto wire = co_await connecting;
        w.self = &self;
        const auto objects = join_store(host_of(i), self, nodes_.empty() ? 0 : node_of(i));
        auto served =
            as_result(self.serve_driver(wire, shares_memory_ ? pages_[pid] : proc::claims()));
        const auto ended = co_await served;
        if (objects) {
            auto left = shield(objects->close());
            co_await left;
        }
        if (!ended) throw ended.error();
        w.self = nullptr;
    }

    sim::loop& loop_;
    sim::network& network_;
    std::uint32_t credit_calls_;
    std::size_t credit_bytes_;
    rt::runtime driver_;
    std::uint16_t cpus_;
    std::size_t max_frame_ = 0;
    std::vector<worker> workers_;
    net::token secret_;
    std::unique_ptr<net::listener> listener_;
    bool stopping_ = false;
    bool shares_memory_ = true, calls_directly_ = true;
    std::uint64_t impostors_ = 0;
    objects::arena memory_;
    std::optional<objects::store> store_;
    std::uint64_t store_bytes_ = 0;
    std::vector<std::unique_ptr<store_node>> nodes_; ///< 0: the driver's; null: it is dead
    std::unique_ptr<net::listener> store_door_;
    std::map<std::string, std::weak_ptr<net::connection>> store_links_; ///< by host
    std::map<std::int64_t, proc::claims> pages_;                        ///< by the worker's pid
};

/// Runs body(cluster) in a simulated world without faults. share: as workers on the host of their
/// driver do.
template <class Body>
void in_sim(std::uint64_t seed, int workers, Body body, std::uint16_t cpus = 1, bool share = true,
            std::uint32_t credit_calls = limit::credit_calls,
            std::size_t credit_bytes = limit::credit_bytes) {
    sim::loop loop(seed);
    sim::network network(loop, sim::faults{});
    sim_cluster cluster(loop, network, workers, cpus, credit_calls, credit_bytes);
    if (!share) cluster.share_no_memory();
    loop.run(cluster.run(std::move(body)));
}

/// The same with a store of so many bytes that all processes have in common.
template <class Body>
void in_sim_with_store(std::uint64_t seed, int workers, std::uint64_t bytes, Body body) {
    sim::loop loop(seed);
    sim::network network(loop, sim::faults{});
    sim_cluster cluster(loop, network, workers);
    cluster.share_store(bytes);
    loop.run(cluster.run(std::move(body)));
}

} // namespace skein::test
