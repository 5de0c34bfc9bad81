// SPDX-License-Identifier: Apache-2.0
// One supervisor's use of a register in etcd, for tests/interop/etcd_test.py:
//
//     skein_etcd_views key=value... read            "view GENERATION MEMBERS"
//     skein_etcd_views key=value... swap ID LAST    swaps views in until LAST; "swapped GENERATION" each
//     skein_etcd_views key=value... watch AFTER LAST      "view GENERATION MEMBERS" each
//     skein_etcd_views key=value... claim ID        "coordinator ID", and again for each other one; ends
//                                             with one that is not ID
//     skein_etcd_views key=value... resign ID       the same, but gives the place back at once
//     skein_etcd_views key=value... follow KNOWN    "coordinator ID" for the next that is not KNOWN
//
// key=value: endpoint (several times), job, prefix, user, password, ca, cert, key, ttl (seconds),
// timeout (seconds). An error of skein's is printed as "error CODE TEXT", and the exit code is 1.
#include <skein/core/error.hpp>
#include <skein/core/task.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/spmd/etcd_register.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

using namespace skein;

namespace {

void say(const std::string& line) {
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
}

void say_view(const spmd::view& v) {
    say(fmt::format("view {} {}", v.generation, v.members.size()));
}

spmd::view made_by(std::uint64_t author, std::uint64_t generation) {
    spmd::view v;
    v.generation = generation;
    v.author = author;
    v.members.push_back({generation, "a", author, 7});
    v.why = fmt::format("swap {} of {}", generation, author);
    return v;
}

task<void> swap(spmd::view_register& views, std::uint64_t author, std::uint64_t last) {
    auto reading = views.read();
    auto now = co_await reading;
    while (now.generation < last) {
        auto swapping = views.compare_and_swap(now.generation, made_by(author, now.generation + 1));
        auto came = co_await swapping;
        if (came.swapped) say(fmt::format("swapped {}", came.now.generation));
        now = std::move(came.now);
    }
}

task<void> watch(spmd::view_register& views, std::uint64_t after, std::uint64_t last) {
    say("watching");
    while (after < last) {
        auto watching = views.watch(after);
        const auto now = co_await watching;
        after = now.generation;
        say_view(now);
    }
}

task<void> claim(spmd::view_register& views, std::uint64_t id, bool resigns) {
    spmd::coordinator_place me{id, fmt::format("tcp:127.0.0.1:{}", id)};
    auto claiming = views.claim(me);
    auto is = co_await claiming;
    say(fmt::format("coordinator {}", is.id));
    if (resigns) {
        auto resigning = views.resign();
        co_await resigning;
        co_return;
    }
    while (is.id == id) {
        auto watching = views.watch_coordinator(is);
        is = co_await watching;
        say(fmt::format("coordinator {}", is.id));
    }
}

task<void> follow(spmd::view_register& views, std::uint64_t known) {
    spmd::coordinator_place place{known, fmt::format("tcp:127.0.0.1:{}", known)};
    if (known == 0) place = {};
    say("following");
    auto watching = views.watch_coordinator(place);
    const auto is = co_await watching;
    say(fmt::format("coordinator {}", is.id));
}

// [use]
/// The newest view; options.endpoints = {"http://node-1:2379"}, options.job = "bert".
task<spmd::view> newest_view(spmd::etcd_options options) {
    spmd::etcd_register views(std::move(options));
    auto reading = views.read();
    co_return co_await reading;
}
// [/use]

task<void> serve(spmd::etcd_options options, std::vector<std::string> words) {
    if (words.at(0) == "read") {
        auto reading = newest_view(std::move(options));
        const auto now = co_await reading;
        say_view(now);
        co_return;
    }
    spmd::etcd_register views(std::move(options));
    const auto number = [&](std::size_t i) { return std::stoull(words.at(i)); };
    task<void> work;
    if (words.at(0) == "swap") work = swap(views, number(1), number(2));
    if (words.at(0) == "watch") work = watch(views, number(1), number(2));
    if (words.at(0) == "claim") work = claim(views, number(1), false);
    if (words.at(0) == "resign") work = claim(views, number(1), true);
    if (words.at(0) == "follow") work = follow(views, number(1));
    if (work) co_await work;
}

spmd::etcd_options take_options(std::vector<std::string>& words) {
    spmd::etcd_options options;
    options.job = "job";
    while (!words.empty() && words.front().find('=') != std::string::npos) {
        const auto at = words.front().find('=');
        const auto name = words.front().substr(0, at), value = words.front().substr(at + 1);
        words.erase(words.begin());
        if (name == "endpoint") options.endpoints.push_back(value);
        if (name == "job") options.job = value;
        if (name == "prefix") options.prefix = value;
        if (name == "user") options.user = value;
        if (name == "password") options.password = value;
        if (name == "ca") options.ca = value;
        if (name == "cert") options.cert = value;
        if (name == "key") options.key = value;
        if (name == "ttl") options.lease_ttl = std::chrono::seconds(std::stoi(value));
        if (name == "timeout")
            options.request_timeout = std::chrono::duration<double>(std::stod(value));
    }
    return options;
}

} // namespace

int main(int argc, char** argv) {
    std::vector<std::string> words(argv + 1, argv + argc);
    auto options = take_options(words);
    try {
        net::real_loop loop;
        loop.run(serve(std::move(options), std::move(words)));
    } catch (const error& e) {
        say(fmt::format("error {} {}", to_string(e.code()), e.what()));
        return 1;
    }
    return 0;
}
