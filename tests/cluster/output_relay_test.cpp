// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/output_relay.hpp>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace output_relay_test {

using namespace skein::cluster;
namespace parts = skein::cluster::detail;
using parts::output_reader;
using skein::proc::output_line;

constexpr std::uint64_t driver = 7;

/// A head of which the test says who is there.
struct fake_head final : parts::output_readers {
    std::map<std::uint64_t, output_reader> readers{{driver, output_reader::driver}};
    std::set<std::uint64_t> gone; ///< nodes
    std::vector<std::uint64_t> asked, sent;
    std::vector<std::string> kept;

    [[nodiscard]] output_reader reader_of(std::uint64_t of) const override {
        return readers.at(of);
    }
    bool ask_for_lines(std::uint64_t node, std::uint64_t) override {
        if (!gone.contains(node)) asked.push_back(node);
        return !gone.contains(node);
    }
    void keep_lines_of(std::uint64_t, std::vector<printed_lines> lines) override {
        for (const auto& some : lines)
            for (const auto& line : some.lines) kept.push_back(line.text);
    }
    void send_lines(std::uint64_t, std::uint64_t node, std::vector<printed_lines>) override {
        sent.push_back(node);
    }
};

std::vector<printed_lines> line(std::string text) {
    output_line one;
    one.text = std::move(text);
    return {{1, 1, {std::move(one)}}};
}

using numbers = std::vector<std::uint64_t>;

TEST_CASE("four nodes are asked at a time for a driver, and the next when it has printed",
          "[cluster]") {
    fake_head head;
    parts::output_relay output(head);
    for (std::uint64_t node = 1; node <= 6; ++node) output.waits(driver, node);
    output.waits(driver, 5); // it waits already
    CHECK(head.asked == numbers{1, 2, 3, 4});
    output.arrived(driver, 2, line("hello"));
    CHECK(head.sent == numbers{2});
    CHECK(head.asked.size() == 4); // the driver has it, and has not printed it
    output.arrived(driver, 2, line("nobody has asked"));
    output.arrived(driver, 6, line("nor of this one"));
    CHECK(head.sent == numbers{2});
    output.printed(driver, 2);
    CHECK(head.asked == numbers{1, 2, 3, 4, 5});
    output.arrived(driver, 1, {}); // it had no more
    CHECK(head.asked == numbers{1, 2, 3, 4, 5, 6});
    CHECK(head.sent == numbers{2});
    output.printed(driver, 9);
    output.printed(99, 1); // of drivers and nodes that nobody knows
    output.arrived(99, 1, line("what"));
    CHECK(head.asked.size() == 6);
}

TEST_CASE("a node that has more while it is asked is asked again behind the others", "[cluster]") {
    fake_head head;
    parts::output_relay output(head);
    for (std::uint64_t node = 1; node <= 5; ++node) output.waits(driver, node);
    output.waits(driver, 1);
    output.arrived(driver, 1, line("first"));
    output.printed(driver, 1);
    CHECK(head.asked == numbers{1, 2, 3, 4, 5});
    output.arrived(driver, 2, {});
    CHECK(head.asked == numbers{1, 2, 3, 4, 5, 1});
}

TEST_CASE("nobody is asked while a driver is away, and what it had not printed is asked for again",
          "[cluster]") {
    fake_head head;
    parts::output_relay output(head);
    output.waits(driver, 1);
    output.waits(driver, 2);
    output.waits(driver, 1); // it has more
    output.arrived(driver, 1, line("lost with the link"));
    output.arrived(driver, 2, line("lost, too"));
    head.readers[driver] = output_reader::none;
    output.link_ended(driver);
    output.waits(driver, 3);
    CHECK(head.asked == numbers{1, 2});
    head.readers[driver] = output_reader::driver;
    output.ask(driver);
    CHECK(head.asked == numbers{1, 2, 1, 3}); // 2 had no more
    head.readers[driver] = output_reader::none;
    output.arrived(driver, 3, line("nobody reads it"));
    CHECK(head.sent == numbers{1, 2});
    output.forget_driver(driver);
    CHECK(output.drivers() == 0);
    output.ask(driver);
    output.link_ended(driver);
}

TEST_CASE("lines of an attempt of a job end at the head, which asks for the next at once",
          "[cluster]") {
    fake_head head;
    head.readers[driver] = output_reader::head;
    parts::output_relay output(head);
    output.waits(driver, 1);
    output.waits(driver, 1);
    output.arrived(driver, 1, line("epoch 1"));
    CHECK(head.kept == std::vector<std::string>{"epoch 1"});
    CHECK(head.asked == numbers{1, 1});
    output.arrived(driver, 1, {});
    CHECK(head.asked == numbers{1, 1});
}

TEST_CASE("a node that has gone makes place for others, and one that is not there is passed over",
          "[cluster]") {
    fake_head head;
    head.readers[8] = output_reader::driver;
    parts::output_relay output(head);
    for (std::uint64_t node = 1; node <= 6; ++node) output.waits(driver, node);
    output.waits(8, 1);
    head.gone = {1, 5};
    output.forget_node(1);
    CHECK(head.asked == numbers{1, 2, 3, 4, 1, 6});
    output.printed(8, 1); // of before
    CHECK(head.asked.size() == 6);
}

TEST_CASE("the bytes of printed lines are their text, and what each costs", "[cluster]") {
    const auto one = skein::proc::line_queue::line_cost;
    CHECK(parts::output_bytes({}) == 0);
    CHECK(parts::output_bytes(line("12345")) == 5 + 2 * one);
}

} // namespace output_relay_test
