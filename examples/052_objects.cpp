// SPDX-License-Identifier: Apache-2.0
// Large values: one copy for all processes of a host, read where it lies.
//
// The driver puts 256 MiB. Four workers add up their quarter of it, in place; one of them dies in the
// middle, and its task runs again elsewhere on the same object. A task returns 64 MiB, and another one
// reads these without the driver having seen a byte of them. With SKEIN_STORE=0 all of it travels in
// messages, and the sums are the same.
#include <skein/program/run.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/view.hpp>

#include <fmt/core.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

using numbers = std::vector<std::uint32_t>;
constexpr std::size_t mebi = std::size_t{1} << 20;

numbers counted(std::size_t bytes) {
    numbers all(bytes / sizeof(std::uint32_t));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint32_t>(i % 1000);
    return all;
}

std::uint64_t sum(std::span<const std::uint32_t> all) {
    std::uint64_t total = 0;
    for (const auto one : all) total += one;
    return total;
}

/// What a quarter adds up to, and how many bytes of it were copied for that.
struct part {
    std::uint64_t total = 0, copied = 0;
};

/// The first process that comes here dies: the file says that there was one.
part quarter(skein::view<numbers> of, int which, std::string dies_once) {
    const auto before = skein::objects::copied().out;
    if (!dies_once.empty() && std::remove(dies_once.c_str()) == 0) std::raise(SIGKILL);
    const auto size = (*of).size() / 4;
    const auto total = sum((*of).subspan(static_cast<std::size_t>(which) * size, size));
    return {total, skein::objects::copied().out - before};
}

numbers every_fourth(skein::view<numbers> of) {
    numbers out;
    out.reserve((*of).size() / 4);
    for (std::size_t i = 0; i < (*of).size(); i += 4) out.push_back((*of)[i]);
    return out;
}

/// A span is read in place, too.
std::uint64_t add_up(std::span<const std::uint32_t> all) { return sum(all); }

skein::task<int> app() {
    std::string mark = std::filesystem::temp_directory_path() / "skein-052-XXXXXX";
    if (const int file = ::mkstemp(mark.data()); file >= 0) ::close(file);

    // [objects]
    const auto all = counted(256 * mebi);
    auto putting = skein::put(all);
    const auto stored = co_await putting;

    std::vector<skein::ref<part>> parts;
    for (int i = 0; i < 4; ++i)
        parts.push_back(skein::remote<&quarter>(stored, i, i == 2 ? mark : std::string()));
    part whole;
    for (const auto& one : parts) {
        const auto got = co_await one;
        whole.total += got.total;
        whole.copied += got.copied;
    }
    fmt::print("four workers: {}\n", whole.total);

    const auto fourth = skein::remote<&every_fourth>(stored); // 64 MiB, which stay where they are
    const auto taken = skein::remote<&add_up>(fourth);
    const auto total = co_await taken;
    auto looking = skein::view(fourth);
    const auto seen = co_await looking;
    fmt::print("every fourth: {} of {} MiB\n", total,
               (*seen).size() * sizeof(std::uint32_t) / mebi);
    // [/objects]
    fmt::print("the driver sees the same: {}\n", sum(*seen) == total ? "yes" : "no");

    const auto copied = skein::objects::copied();
    fmt::print("copied into objects here: {} MiB\n", copied.in / mebi);
    fmt::print("copied out of them: {} bytes\n", copied.out + whole.copied);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }

// With four workers it prints
//
//     four workers: 33520818816
//     every fourth: 8355038880 of 64 MiB
//     the driver sees the same: yes
//     copied into objects here: 256 MiB
//     copied out of them: 0 bytes
