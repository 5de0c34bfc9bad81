// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/agent.hpp>
#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/head.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/children.hpp>

#include <tests/support/error_of.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>

using namespace skein;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

using skein::test::error_of;

/// A head with one node that starts nothing, on the loop of a thread: what tools ask.
class asked_cluster {
public:
    asked_cluster() {
        io_.run([this] { return begin(this); });
        how.head = address_;
        how.secret = secret_;
    }
    ~asked_cluster() {
        io_.run([this] { return end(this); });
    }
    asked_cluster(const asked_cluster&) = delete;
    asked_cluster& operator=(const asked_cluster&) = delete;

    cluster::tool_options how;

private:
    struct parts {
        explicit parts(net::real_loop& on) : network(on), children(on) {}
        net::real_network network;
        proc::local_children children;
        std::optional<cluster::head> head;
        std::optional<cluster::agent> node;
        event joined;
        scope serving;
    };

    static task<void> begin(asked_cluster* self) {
        auto& on = self->io_.loop();
        self->parts_ = std::make_unique<parts>(on);
        auto* const p = self->parts_.get();
        cluster::head_options head;
        head.listen = net::address::tcp("127.0.0.1", 0);
        head.secret = self->secret_;
        head.host = "here";
        p->head.emplace(on, p->network, head);
        self->address_ = p->head->local();
        cluster::agent_options node;
        node.head = self->address_;
        node.secret = self->secret_;
        node.name = "a";
        node.offers = sched::parse_resources("cpu=2,memory=1GiB,ssd=1").value();
        node.on_joined = [p](const std::string&) { p->joined.set(); };
        p->node.emplace(on, p->network, p->children, std::move(node));
        p->serving.spawn(p->head->serve());
        p->serving.spawn(p->node->serve());
        auto there = p->joined.wait();
        co_await there;
    }
    static task<void> end(asked_cluster* self) {
        self->parts_->head->stop(); // the node hears it and leaves
        auto ended = self->parts_->serving.join();
        co_await ended;
        self->parts_.reset();
    }

    net::token secret_ = net::token::generate();
    net::address address_;
    net::loop_thread io_{"cluster"};
    std::unique_ptr<parts> parts_;
};

/// What a head answers to one message.
template <class Reply, class M>
task<Reply> answer_to(net::network* via, cluster::tool_options how, M what) {
    auto dialing =
        net::link::connect(*via, how.head, cluster::detail::cluster_link(how.secret, "t", "", 1));
    const auto way = net::requests::over(co_await dialing);
    auto asking = as_result(way->template call<Reply>(std::move(what)));
    auto reply = co_await asking;
    auto closing = way->close();
    co_await closing;
    if (!reply) throw reply.error();
    co_return std::move(*reply);
}

template <class Reply, class M>
error refusal_of(const cluster::tool_options& how, M what) {
    return error_of([&] {
        net::real_loop loop;
        net::real_network network(loop);
        (void)loop.run(answer_to<Reply>(&network, how, what));
    });
}

} // namespace

TEST_CASE("a tool sees who is in a cluster") {
    asked_cluster c;
    const auto now = cluster::get_status(c.how);
    CHECK(now.address == to_string(c.how.head));
    CHECK(now.host == "here");
    REQUIRE(now.nodes.size() == 1);
    CHECK(now.nodes[0].name == "a");
    CHECK(now.nodes[0].resources == "cpu=2,memory=1GiB,ssd=1");
    CHECK(now.nodes[0].used.empty());
    CHECK(now.jobs.empty()); // a tool is none
}

TEST_CASE("a tool drains a node, and takes it back") {
    asked_cluster c;
    const auto told = cluster::drain_node(c.how, "a");
    CHECK(told.workers == 0);
    CHECK(told.open == 0); // the last one
    CHECK(cluster::get_status(c.how).nodes.at(0).draining);
    CHECK(cluster::drain_node(c.how, "a", false).open == 1);
    CHECK_FALSE(cluster::get_status(c.how).nodes.at(0).draining);
    const auto unknown = error_of([&] { (void)cluster::drain_node(c.how, "b"); });
    CHECK(unknown.code() == errc::not_found);
    CHECK_THAT(unknown.what(), ContainsSubstring("no node is called \"b\"; there are: \"a\""));
}

TEST_CASE("a tool of another release is told so, and changes nothing") {
    asked_cluster c;
    constexpr auto other = cluster::cluster_version + 1;
    for (const auto& refused :
         {refusal_of<cluster::cluster_status>(c.how, cluster::ask_status{other, false, {}}),
          refusal_of<cluster::drain_reply>(c.how, cluster::ask_drain{"a", true, other}),
          refusal_of<cluster::stop_reply>(c.how, cluster::ask_stop{other})}) {
        CHECK(refused.code() == errc::mismatch);
        CHECK_THAT(refused.what(), ContainsSubstring("version"));
    }
    const auto now = cluster::get_status(c.how);
    REQUIRE(now.nodes.size() == 1);
    CHECK_FALSE(now.nodes[0].draining);
}

TEST_CASE("a tool with another token is told so, and changes nothing") {
    asked_cluster c;
    auto stranger = c.how;
    stranger.secret = net::token::generate();
    for (const auto& asks :
         {std::function<void()>([&] { (void)cluster::get_status(stranger); }),
          std::function<void()>([&] { (void)cluster::stop_cluster(stranger); })}) {
        const auto refused = error_of(asks);
        CHECK(refused.code() == errc::permission_denied);
        CHECK_THAT(refused.what(), ContainsSubstring("the head at " + to_string(c.how.head)));
        CHECK_THAT(refused.what(), ContainsSubstring("another token"));
    }
    CHECK(cluster::get_status(c.how).nodes.size() == 1);
}

TEST_CASE("a stopped cluster is gone, and who asks it is told what to do") {
    cluster::tool_options how;
    {
        asked_cluster c;
        how = c.how;
        CHECK(cluster::stop_cluster(how).nodes == 1);
    }
    const auto gone = error_of([&] { (void)cluster::get_status(how); });
    CHECK(gone.code() == errc::refused);
    CHECK_THAT(gone.what(), ContainsSubstring("no cluster at " + to_string(how.head)));
    CHECK_FALSE(gone.hint().empty());
}

TEST_CASE("a peer that is no head is not waited for longer than asked") {
    net::real_loop loop;
    net::real_network network(loop);
    cluster::tool_options how;
    how.secret = net::token::generate();
    how.within = 20ms;
    const auto listener = network.listen(net::address::tcp("127.0.0.1", 0)); // says nothing
    how.head = listener->local();
    const auto silent = error_of([&] {
        (void)loop.run([](net::network* via, cluster::tool_options with) -> task<int> {
            auto asking = cluster::ask_for_status(*via, with);
            (void)co_await asking;
            co_return 0;
        }(&network, how));
    });
    CHECK(silent.code() == errc::timeout);
}
