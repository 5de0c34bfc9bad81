// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of sched/resources.hpp: reading, printing and checking amounts.

#include <skein/core/check.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace skein::sched {

namespace detail {

struct memory_unit {
    std::string_view name;
    std::uint64_t bytes;
};
inline constexpr std::array<memory_unit, 9> memory_units{{{"TiB", std::uint64_t{1} << 40},
                                                          {"GiB", std::uint64_t{1} << 30},
                                                          {"MiB", std::uint64_t{1} << 20},
                                                          {"KiB", std::uint64_t{1} << 10},
                                                          {"TB", 1'000'000'000'000},
                                                          {"GB", 1'000'000'000},
                                                          {"MB", 1'000'000},
                                                          {"kB", 1'000},
                                                          {"B", 1}}};

inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

inline bool is_resource_name(std::string_view name) noexcept {
    if (name.empty() || name.size() > 64 || !is_letter(name.front())) return false;
    return std::all_of(name.begin(), name.end(), [](char c) {
        return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == '.';
    });
}

/// Text for a message: bounded, and without what a terminal would obey.
inline std::string shown(std::string_view text) {
    std::string s(text.substr(0, 40));
    for (auto& c : s)
        if (c < ' ' || c > '~') c = '?';
    return text.size() > 40 ? s + "..." : s;
}

/// Digits with at most four decimals, in steps of 1/10000; nothing if it is something else or above
/// `most` ones.
inline std::optional<std::uint64_t> read_steps(std::string_view text, std::uint64_t most) {
    std::uint64_t whole = 0, part = 0;
    std::size_t i = 0, decimals = 0;
    for (; i < text.size() && is_digit(text[i]); ++i) {
        whole = whole * 10 + static_cast<std::uint64_t>(text[i] - '0');
        if (whole > most) return std::nullopt;
    }
    if (i == 0) return std::nullopt;
    if (i < text.size()) {
        if (text[i] != '.' || i + 1 == text.size()) return std::nullopt;
        for (++i; i < text.size(); ++i) {
            if (!is_digit(text[i]) || ++decimals > 4) return std::nullopt;
            part = part * 10 + static_cast<std::uint64_t>(text[i] - '0');
        }
    }
    for (; decimals < 4; ++decimals) part *= 10;
    if (whole == most && part != 0) return std::nullopt;
    return whole * amount::steps + part;
}

inline error bad_amount(std::string_view name, std::string_view value) {
    return error(errc::invalid_argument,
                 fmt::format("{}={} is no amount", shown(name), shown(value)))
        .with_hint(fmt::format("write {0}=2 or {0}=0.5: at most four decimals, 0 to {1}",
                               shown(name), amount::most));
}

inline result<std::uint64_t> read_memory(std::string_view value, std::uint64_t most) {
    std::uint64_t unit = 1;
    auto digits = value;
    for (const auto& u : memory_units)
        if (value.ends_with(u.name)) {
            unit = u.bytes;
            digits.remove_suffix(u.name.size());
            break;
        }
    const auto steps = read_steps(digits, most / unit);
    if (!steps)
        return error(errc::invalid_argument,
                     fmt::format("memory={} is no amount of memory", shown(value)))
            .with_hint(
                fmt::format("write memory=512MiB, memory=1.5GiB or bytes; at most {}", most));
    __extension__ using wide = unsigned __int128;
    const auto bytes = (static_cast<wide>(*steps) * unit + amount::steps - 1) / amount::steps;
    return static_cast<std::uint64_t>(bytes);
}

/// Of a name that is meant to be one of the three: what it is called. "": it is a name of its own.
[[nodiscard]] inline std::string_view meant_resource(std::string_view name) {
    std::string low(name);
    for (char& c : low) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (low == "cpu" || low == "cpus" || low == "num_cpus") return "cpu";
    if (low == "gpu" || low == "gpus" || low == "num_gpus") return "gpu";
    if (low == "memory" || low == "mem" || low == "ram") return "memory";
    return "";
}

/// Reads one NAME=AMOUNT into r.
inline result<void> read_resource(std::string_view part, resources& r,
                                  const resource_limits& limits) {
    const auto equals = part.find('=');
    const auto name = part.substr(0, equals);
    if (equals == std::string_view::npos || !is_resource_name(name))
        return error(errc::invalid_argument, fmt::format("\"{}\" is no resource", shown(part)))
            .with_hint("write NAME=AMOUNT with a name that begins with a letter: cpu=2,ssd=1");
    const auto value = part.substr(equals + 1);
    if (const auto meant = meant_resource(name); !meant.empty() && meant != name)
        return error(errc::invalid_argument, fmt::format("\"{}\" is no resource", shown(part)))
            .with_hint(fmt::format("it is called {0}: {0}={1}", meant, shown(value)));
    if (name == "memory") {
        const auto bytes = read_memory(value, limits.memory);
        if (!bytes) return bytes.error();
        r.memory = *bytes;
        return {};
    }
    const auto steps = read_steps(value, static_cast<std::uint64_t>(amount::most));
    if (!steps) return bad_amount(name, value);
    const auto n = amount::of_steps(static_cast<std::int64_t>(*steps));
    if (name == "cpu") {
        r.cpu = n;
    } else if (name == "gpu") {
        r.gpu = n;
    } else {
        r.set(name, n);
        if (r.custom.size() > limits.custom)
            return error(errc::too_large,
                         fmt::format("more than {} custom resources", limits.custom))
                .with_hint("use labels for what is not counted");
    }
    return {};
}

} // namespace detail

SKEIN_INLINE amount amount::from(double n) {
    const double scaled = n * static_cast<double>(steps);
    const bool in_range = n >= 0 && n <= static_cast<double>(most); // false for what is no number
    if (!in_range || (n > 0 && scaled < 0.5))
        throw error(errc::invalid_argument, fmt::format("{} is no amount of a resource", n))
            .with_hint(fmt::format("amounts are 0, or 0.0001 to {}, in steps of 0.0001", most));
    return of_steps(static_cast<std::int64_t>(std::llround(scaled)));
}

SKEIN_INLINE amount resources::of(std::string_view name) const noexcept {
    for (const auto& c : custom)
        if (c.name == name) return c.value;
    return {};
}

SKEIN_INLINE resources& resources::set(std::string_view name, amount value) {
    const bool good = detail::is_resource_name(name) || is_inner_resource(name);
    if (!good || name == "cpu" || name == "gpu" || name == "memory")
        throw error(errc::invalid_argument,
                    fmt::format("\"{}\" is no name of a custom resource", detail::shown(name)))
            .with_hint("a letter, then letters, digits, '_', '-' or '.'; cpu, gpu and memory are "
                       "fields of their own");
    const auto at =
        std::lower_bound(custom.begin(), custom.end(), name,
                         [](const custom_resource& c, std::string_view n) { return c.name < n; });
    const bool there = at != custom.end() && at->name == name;
    if (!value) {
        if (there) custom.erase(at);
    } else if (there) {
        at->value = value;
    } else {
        custom.insert(at, {std::string(name), value});
    }
    return *this;
}

SKEIN_INLINE resources& resources::operator+=(const resources& more) {
    cpu += more.cpu;
    gpu += more.gpu;
    memory += more.memory;
    for (const auto& c : more.custom) set(c.name, of(c.name) + c.value);
    return *this;
}

SKEIN_INLINE resources& resources::operator-=(const resources& less) {
    SKEIN_CHECK(fits(less, *this), "{} is less than {}", to_string(*this), to_string(less));
    cpu -= less.cpu;
    gpu -= less.gpu;
    memory -= less.memory;
    for (const auto& c : less.custom) set(c.name, of(c.name) - c.value);
    return *this;
}

SKEIN_INLINE bool fits(const resources& need, const resources& have) noexcept {
    if (need.cpu > have.cpu || need.gpu > have.gpu || need.memory > have.memory) return false;
    return std::all_of(need.custom.begin(), need.custom.end(),
                       [&](const custom_resource& c) { return c.value <= have.of(c.name); });
}

SKEIN_INLINE result<resources> parse_resources(std::string_view text,
                                               const resource_limits& limits) {
    resources r;
    if (text.empty()) return r;
    if (text.size() > limits.text)
        return error(errc::too_large, fmt::format("a list of resources of {} bytes, more than {}",
                                                  text.size(), limits.text));
    const auto where = fmt::format("resources \"{}\"", detail::shown(text));
    std::vector<std::string_view> seen;
    for (std::size_t begin = 0; begin <= text.size();) {
        const auto comma = std::min(text.find(',', begin), text.size());
        const auto part = text.substr(begin, comma - begin);
        const auto name = part.substr(0, part.find('='));
        if (std::find(seen.begin(), seen.end(), name) != seen.end())
            return error(errc::invalid_argument,
                         fmt::format("{} is there twice", detail::shown(name)))
                .with_where(where);
        seen.push_back(name);
        if (auto read = detail::read_resource(part, r, limits); !read) {
            auto why = read.error();
            return std::move(why).with_where(where);
        }
        begin = comma + 1;
    }
    return r;
}

SKEIN_INLINE std::string to_string(amount a) {
    const auto raw = a.in_steps();
    const auto size = static_cast<std::uint64_t>(raw < 0 ? -raw : raw);
    auto s = fmt::format("{}{}", raw < 0 ? "-" : "", size / amount::steps);
    if (const auto part = size % amount::steps; part != 0) {
        s += fmt::format(".{:04}", part);
        while (s.back() == '0') s.pop_back();
    }
    return s;
}

SKEIN_INLINE std::string to_string(const resources& r) {
    std::string s;
    const auto append = [&s](std::string_view name, const std::string& value) {
        if (!s.empty()) s += ',';
        s += fmt::format("{}={}", name, value);
    };
    if (r.cpu) append("cpu", to_string(r.cpu));
    if (r.gpu) append("gpu", to_string(r.gpu));
    if (r.memory != 0) {
        for (const auto& u : detail::memory_units) {
            const bool binary = u.name.size() == 3 || u.bytes == 1;
            if (!binary || r.memory % u.bytes != 0) continue;
            append("memory", fmt::format("{}{}", r.memory / u.bytes, u.name));
            break;
        }
    }
    for (const auto& c : r.custom)
        if (!is_inner_resource(c.name)) append(c.name, to_string(c.value));
    return s;
}

SKEIN_INLINE std::string to_string(gpu_set gpus) {
    std::string s;
    for (int i = 0; i < gpu_set::most; ++i)
        if (gpus.has(i)) s += fmt::format("{}{}", s.empty() ? "" : ",", i);
    return s;
}

namespace detail {
/// Amounts that came as numbers, not as text, must lie in the same bounds.
inline result<void> check_range(const resources& r) {
    const auto in_range = [](amount a) {
        return a >= amount{} && a <= amount::of_steps(amount::most * amount::steps);
    };
    const auto named = static_cast<std::size_t>(
        std::count_if(r.custom.begin(), r.custom.end(),
                      [](const custom_resource& c) { return !is_inner_resource(c.name); }));
    const bool ok = in_range(r.cpu) && in_range(r.gpu) && r.memory <= resource_limits{}.memory &&
                    named <= resource_limits{}.custom &&
                    std::all_of(r.custom.begin(), r.custom.end(),
                                [&](const custom_resource& c) { return in_range(c.value); });
    if (ok) return {};
    return error(errc::invalid_argument, fmt::format("amounts out of range: {}", to_string(r)))
        .with_hint(fmt::format("0 to {} of each, memory up to {} bytes, {} custom resources",
                               amount::most, resource_limits{}.memory, resource_limits{}.custom));
}
} // namespace detail

SKEIN_INLINE result<void> check_demand(const resources& need) {
    if (auto range = detail::check_range(need); !range) return range;
    if (need.gpu > amount(1) && !need.gpu.is_whole())
        return error(errc::invalid_argument,
                     fmt::format("asks for gpu={}: a share of a gpu lies on one gpu",
                                 to_string(need.gpu)))
            .with_hint("ask for a fraction up to 1, or for whole gpus");
    return {};
}

SKEIN_INLINE result<void> check_total(const resources& total) {
    if (auto range = detail::check_range(total); !range) return range;
    if (!total.gpu.is_whole() || total.gpu > amount(gpu_set::most))
        return error(errc::invalid_argument, fmt::format("has gpu={}", to_string(total.gpu)))
            .with_hint(fmt::format("a place has whole gpus, at most {}", gpu_set::most));
    return {};
}

} // namespace skein::sched
