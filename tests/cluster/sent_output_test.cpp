// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/sent_output.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/net/stream.hpp>
#include <skein/sim/loop.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace sent_output_test {

using namespace skein;
using namespace skein::cluster;

constexpr std::uint64_t driver = 7;

/// A link to a head, or none.
struct fake_way final : cluster::detail::output_way {
    bool is_there = true;
    std::vector<std::uint64_t> offered; ///< drivers
    std::vector<node_output> sent;

    bool offer_lines(std::uint64_t of) override {
        if (is_there) offered.push_back(of);
        return is_there;
    }
    bool send_lines(node_output m) override {
        if (is_there) sent.push_back(std::move(m));
        return is_there;
    }
};

/// A process that has printed this, and has ended.
class ended_child final : public proc::child {
public:
    explicit ended_child(std::string text) : text_(std::move(text)) {}
    const std::string& name() const noexcept override { return text_; }
    std::int64_t pid() const noexcept override { return 1; }
    bool running() const noexcept override { return false; }
    task<proc::child_end> ended() override { co_return proc::child_end{proc::exit_status(), {}}; }
    void signal(int) noexcept override {}
    void kill() noexcept override {}
    proc::process_usage usage() override { return {}; }
    std::unique_ptr<net::stream> take_stream() override { return nullptr; }
    task<std::size_t> read_output(bool is_error, std::span<std::byte> into) override {
        if (is_error) co_return 0;
        const auto left = as_bytes(text_).subspan(read_);
        const auto some = left.first(std::min(left.size(), into.size()));
        std::copy(some.begin(), some.end(), into.begin());
        read_ += some.size();
        co_return some.size();
    }

private:
    std::string text_;
    std::size_t read_ = 0;
};

struct world {
    sim::loop loop{5};
    fake_way way;
    cluster::detail::sent_output output{way};

    static task<void> read(world* w, lease_name lease, std::string text) {
        ended_child child(std::move(text));
        auto reading = w->output.read(lease, &child);
        co_await reading;
    }
    void print(std::uint64_t lease, std::string text) {
        loop.run(read(this, {driver, lease}, std::move(text)));
    }
    /// "LEASE/FIRST NUMBER" of the last message.
    [[nodiscard]] std::vector<std::string> last() const {
        std::vector<std::string> out;
        for (const auto& one : way.sent.back().from)
            out.push_back(std::to_string(one.lease) + "/" + std::to_string(one.first) + " " +
                          std::to_string(one.lines.size()));
        return out;
    }
};

using texts = std::vector<std::string>;

TEST_CASE("the head is told once of lines, and again when it has taken some", "[cluster]") {
    world w;
    w.output.add({driver, 1}, false);
    w.output.add({driver, 2}, false);
    w.print(1, "a\nb\n");
    w.print(2, "c\n");
    CHECK(w.way.offered.size() == 1);
    w.output.send(driver);
    CHECK(w.last() == texts{"1/1 2", "2/1 1"});
    CHECK(w.way.offered.size() == 1); // there are no more
    w.print(2, "d\n");
    CHECK(w.way.offered.size() == 2);
    w.output.send(driver);
    CHECK(w.last() == texts{"2/2 1"});
}

TEST_CASE("who was served last comes last", "[cluster]") {
    world w;
    for (const std::uint64_t lease : {1, 2, 3}) {
        w.output.add({driver, lease}, false);
        w.print(lease, std::string(15'000, 'x') + "\n" + std::string(15'000, 'y') + "\n");
    }
    w.output.send(driver);
    CHECK(w.last() == texts{"1/1 2", "2/1 1"}); // a message has no room for more
    w.output.send(driver);
    CHECK(w.last() == texts{"3/1 2", "2/2 1"});
}

TEST_CASE("a head that comes later is told of all, and gets the last lines of what is kept again",
          "[cluster]") {
    world w;
    auto& kept = w.output.add({driver, 1}, true);
    w.way.is_there = false;
    w.print(1, "a\n");
    CHECK(w.way.offered.empty());
    w.way.is_there = true;
    w.output.offer_all();
    CHECK(w.way.offered.size() == 1);
    w.output.send(driver);
    CHECK(kept.said.empty());
    CHECK(kept.all_sent.is_set());
    w.output.offer_all(); // the link was lost with it, maybe
    CHECK(w.way.offered.size() == 2);
    w.output.send(driver);
    CHECK(w.last() == texts{"1/1 1"});
    w.output.remove({driver, 1});
    w.output.offer_all();
    CHECK(w.way.offered.size() == 2);
}

} // namespace sent_output_test
