// SPDX-License-Identifier: Apache-2.0
// The bodies of rank_options.hpp.
#include "rank_options.hpp"

#include <skein/core/available_cores.hpp>
#include <skein/core/error.hpp>
#include <skein/proc/gpus.hpp>

#include <charconv>
#include <ctime>
#include <map>
#include <set>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein_program {
namespace {

using skein::errc;
using skein::error;

void check_rank(int rank, int ranks, const std::string& option, const std::string& text) {
    if (rank < ranks) return;
    throw error(errc::usage, fmt::format("{} {}: there is no rank {}", option, text, rank))
        .with_hint(fmt::format("ranks of this host are 0 to {}", ranks - 1));
}

/// What stands before the first comma; the rest stays.
std::string_view take_one(std::string_view& rest) {
    const auto comma = rest.find(',');
    const auto one = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    return one;
}

} // namespace

std::optional<int> read_number(std::string_view text) {
    int n = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), n);
    if (text.empty() || read.ec != std::errc() || read.ptr != text.data() + text.size())
        return std::nullopt;
    return n;
}

int read_ranks(const std::string& text) {
    if (text == "cpu") return skein::available_cores();
    if (text == "gpu" || text == "auto") {
        const auto gpus = static_cast<int>(skein::proc::visible_gpus().size());
        if (gpus > 0) return gpus;
        if (text == "auto") return skein::available_cores();
        throw error(errc::usage, "--nproc-per-node gpu: this host shows no gpu")
            .with_hint("a number, or cpu for a rank on each processor; CUDA_VISIBLE_DEVICES may "
                       "hide gpus");
    }
    const auto n = read_number(text);
    if (n && *n > 0) return *n;
    throw error(errc::usage, fmt::format("--nproc-per-node {}: a number from 1 on, or cpu, gpu or "
                                         "auto is wanted",
                                         text))
        .with_hint("of hosts that come and go: --nnodes LEAST:MOST; of workers on one host that "
                   "do: a program of Trainer<Elastic<...>> itself, ./train --workers 1:4");
}

std::function<int(int rank)> read_outputs(const std::string& text, const std::string& option,
                                          int ranks) {
    if (const auto all = read_number(text); all && *all >= 0 && *all <= 3) {
        if (*all == 0) return {};
        return [bits = *all](int) { return bits; };
    }
    std::map<int, int> of;
    std::string_view rest = text;
    do {
        const auto one = take_one(rest);
        const auto colon = one.find(':');
        const auto rank = read_number(one.substr(0, colon));
        const auto bits =
            colon == std::string_view::npos ? std::nullopt : read_number(one.substr(colon + 1));
        if (!rank || *rank < 0 || !bits || *bits < 0 || *bits > 3)
            throw error(errc::usage, fmt::format("{} {}: which outputs?", option, text))
                .with_hint("0 none, 1 standard output, 2 standard error, 3 both; of some ranks "
                           "RANK:N, as in 0:1,1:3");
        check_rank(*rank, ranks, option, text);
        of[*rank] = *bits;
    } while (!rest.empty());
    return [of = std::move(of)](int rank) {
        const auto found = of.find(rank);
        return found == of.end() ? 0 : found->second;
    };
}

std::function<bool(int rank)> read_rank_list(const std::string& text, const std::string& option,
                                             int ranks) {
    std::set<int> all;
    std::string_view rest = text;
    do {
        const auto rank = read_number(take_one(rest));
        if (!rank || *rank < 0)
            throw error(errc::usage, fmt::format("{} {}: which ranks?", option, text))
                .with_hint("local ranks with commas between them, as in 0,2");
        check_rank(*rank, ranks, option, text);
        all.insert(*rank);
    } while (!rest.empty());
    return [all = std::move(all)](int rank) { return all.contains(rank); };
}

std::string name_of_run() {
    const auto now = std::time(nullptr);
    std::tm parts{};
    ::localtime_r(&now, &parts);
    char text[32] = {};
    (void)std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
    return fmt::format("run-{}-{}", text, ::getpid());
}

} // namespace skein_program
