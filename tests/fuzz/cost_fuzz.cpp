// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for what `skein report cost` reads: prices that somebody typed, and rows of
// metrics.jsonl. Any input gives a value or an error with one line of text.
//
// The first byte chooses: even for prices, odd for a row.

#include <skein/report/cost.hpp>
#include <tests/fuzz/require.hpp>

#include <cmath>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace report = skein::report;
using fuzz::require;

namespace {

void require_one_line(const skein::error& why) {
    require(!why.text().empty(), "an error without a text");
    for (const char c : why.text())
        require(static_cast<unsigned char>(c) >= 32, "control characters in an error");
}

void read_prices(std::string_view text) {
    const auto prices = report::parse_prices(text);
    if (!prices) return require_one_line(prices.error());
    require(!prices->empty() && prices->size() <= 64, "no prices, or too many");
    std::string again;
    std::set<std::string> kinds;
    for (const auto& each : *prices) {
        require(report::parse_worker_kind(each.kind).has_value(), "a kind that is none");
        require(std::isfinite(each.per_hour) && each.per_hour >= 0, "a price that is none");
        require(kinds.insert(each.kind).second, "a kind twice");
        again += fmt::format("{}{}={}", again.empty() ? "" : ",", each.kind, each.per_hour);
    }
    const auto same = report::parse_prices(again);
    require(same && *same == *prices, "prices that do not read back");
    report::run_spending spent{.seconds = 1, .worker_seconds = 7200.0};
    for (const auto& each : *prices) spent.by_kind[each.kind] = 1.0;
    const auto money = report::money_of(spent, *prices);
    require(money && *money >= 0, "money that is none");
}

void read_row(std::string_view line) {
    const auto row = report::parse_cost_row(line, "loss");
    if (!row) return require(!row.error().text().empty(), "an error without a text");
    require(std::isfinite(row->spent.seconds) && row->spent.seconds >= 0, "seconds that are none");
    require(std::isfinite(row->spent.worker_seconds) && row->spent.worker_seconds >= 0,
            "worker-seconds that are none");
    for (const auto& [kind, seconds] : row->spent.by_kind) {
        require(report::parse_worker_kind(kind).has_value() && !kind.empty(),
                "a kind that is none");
        require(std::isfinite(seconds) && seconds >= 0, "seconds of a kind that are none");
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    if (data[0] % 2 == 0)
        read_prices(text);
    else
        read_row(text);
    return 0;
}
