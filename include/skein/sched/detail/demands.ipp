// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of sched/demands.hpp.

#include <skein/core/error.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include <fmt/format.h>

namespace skein::sched {

namespace detail {

inline constexpr std::size_t most_label_bytes = 256;

[[nodiscard]] inline std::string label_as_text(const demand& one) {
    return one.captures ? one.label + "+" : one.label;
}

/// What a demand's text has behind its resources: "@zone=a\n/data\nA=1".
[[nodiscard]] SKEIN_INLINE std::string where_as_text(std::string_view label,
                                                     const task_environment& env) {
    std::string out;
    if (!label.empty()) out = fmt::format("@{}", label);
    if (!env.empty()) out += fmt::format("\n{}\n{}", env.folder, variables_as_text(env));
    return out;
}

} // namespace detail

SKEIN_INLINE constraint where_labelled(const std::string& label) {
    if (label.empty()) return {};
    return label == spread_label ? constraint::spread() : constraint::labelled(label);
}

namespace detail {

/// Takes a number, or a word, off the front of a text. False: it does not begin so.
template <class Number>
[[nodiscard]] bool take_number(std::string_view& from, Number& into) {
    const auto [end, bad] = std::from_chars(from.data(), from.data() + from.size(), into);
    if (bad != std::errc()) return false;
    from.remove_prefix(static_cast<std::size_t>(end - from.data()));
    return true;
}
[[nodiscard]] inline bool take_word(std::string_view& from, std::string_view word) {
    if (!from.starts_with(word)) return false;
    from.remove_prefix(word.size());
    return true;
}

} // namespace detail

SKEIN_INLINE std::string place::to_text() const {
    const auto in = bundle < 0 ? std::string() : fmt::format("{}", bundle);
    const char* const plus = captures ? "+" : "";
    switch (what) {
    case kind::any: break;
    case kind::anywhere: return "@*";
    case kind::nodes: return name;
    case kind::spread: return std::string(spread_label);
    case kind::group: return fmt::format("@{}{}{}{}", group, in.empty() ? "" : "/", in, plus);
    case kind::named_group: return fmt::format("@={}{}/{}", in, plus, name);
    case kind::actor:
        return fmt::format("@!{}.{}", actor.value().incarnation, actor.value().number);
    }
    return {};
}

SKEIN_INLINE place place::from_text(std::string_view text) {
    using detail::take_number, detail::take_word;
    place out;
    if (text.empty()) return out;
    bool good = true;
    auto rest = text;
    if (text == "@*") {
        out.what = kind::anywhere;
    } else if (text == spread_label) {
        out.what = kind::spread;
    } else if (take_word(rest, "@!")) {
        out.what = kind::actor;
        unique_number id;
        good = take_number(rest, id.incarnation) && take_word(rest, ".") &&
               take_number(rest, id.number) && rest.empty();
        out.actor = actor_id(id);
        good = good && static_cast<bool>(out.actor);
    } else if (take_word(rest, "@=")) {
        out.what = kind::named_group;
        const bool has_bundle = !rest.starts_with('+') && !rest.starts_with('/');
        good = !has_bundle || take_number(rest, out.bundle);
        out.captures = take_word(rest, "+");
        good = good && take_word(rest, "/");
        out.name = rest;
    } else if (take_word(rest, "@")) {
        out.what = kind::group;
        good = take_number(rest, out.group) && out.group != 0;
        if (good && take_word(rest, "/")) good = take_number(rest, out.bundle) && out.bundle >= 0;
        out.captures = take_word(rest, "+");
        good = good && rest.empty();
    } else {
        good = false;
    }
    if (good) return out;
    place labelled;
    labelled.what = kind::nodes;
    labelled.name = text;
    return labelled;
}

SKEIN_INLINE std::string group_label(std::uint64_t group, int bundle) {
    return place{place::kind::group, {}, group, bundle}.to_text();
}

SKEIN_INLINE bool parse_group_label(std::string_view label, std::uint64_t& group, int& bundle) {
    const auto read = place::from_text(label);
    group = read.group;
    bundle = read.bundle;
    return read.is(place::kind::group) && !read.captures;
}

SKEIN_INLINE demand_table::demand_table() {
    all_.emplace_back(); // 0: nothing
    auto& usual = all_.emplace_back();
    usual.need.cpu = 1;
    usual.cpus = 1;
    for (std::size_t i = 0; i < all_.size(); ++i)
        numbers_[{all_[i].need, {}, false}] = demand_id(static_cast<std::uint16_t>(i));
}

SKEIN_INLINE result<demand_id> demand_table::number(const resources& need, std::string_view label,
                                                    bool for_life, task_environment env) {
    const auto where = detail::where_as_text(label, env);
    const auto found = numbers_.find({need, where, for_life});
    if (found != numbers_.end()) return found->second;
    if (const auto can_be = check_demand(need); !can_be) return can_be.error();
    constexpr auto most_cpus = std::numeric_limits<std::uint16_t>::max();
    if (need.cpu.in_steps() < 0 || need.cpu > amount(most_cpus))
        return error(errc::invalid_argument,
                     fmt::format("{} is not a number of cpus", to_string(need.cpu)))
            .with_hint(fmt::format("0 to {}", most_cpus));
    demand made;
    const auto in = place::from_text(label);
    if (label.starts_with('@') && label.ends_with('+')) label.remove_suffix(1);
    made.spreads = in.is(place::kind::spread);
    const bool is_ours = in.is(place::kind::group) || made.spreads;
    made.group = in.group;
    made.bundle = in.bundle;
    made.captures = in.captures;
    if (label.size() > detail::most_label_bytes ||
        (!is_ours && label.find_first_of("@\n") != label.npos))
        return error(errc::invalid_argument, fmt::format("{} is not a label", label))
            .with_hint(
                fmt::format("at most {} bytes, none of them an @", detail::most_label_bytes));
    if (all_.size() == most && free_.empty())
        return error(errc::exhausted, fmt::format("{} different demands were made already", most))
            .with_hint("round amounts of memory, so that equal work asks for equal amounts");
    made.need = need;
    made.label = label;
    made.env = std::move(env);
    made.for_life = for_life;
    made.only_cpus = !need.gpu && need.memory == 0 && need.custom.empty() && made.env.empty();
    made.cpus = static_cast<std::uint16_t>(whole_cores(need.cpu));
    if (!made.only_cpus || !label.empty()) made.cpus = std::max<std::uint16_t>(made.cpus, 1);
    made.is_simple = made.only_cpus && need.cpu.is_whole() && label.empty() && !for_life;
    demand_id number(static_cast<std::uint16_t>(all_.size()));
    if (free_.empty()) {
        all_.push_back(std::move(made));
    } else {
        number = free_.back();
        free_.pop_back();
        all_[number.value()] = std::move(made);
    }
    numbers_[{need, where, for_life}] = number;
    return number;
}

SKEIN_INLINE void demand_table::forget_group(std::uint64_t group) {
    for (std::size_t n = 0; n < all_.size(); ++n) {
        if (all_[n].group != group) continue;
        numbers_.erase({all_[n].need,
                        detail::where_as_text(detail::label_as_text(all_[n]), all_[n].env),
                        all_[n].for_life});
        all_[n] = {};
        free_.emplace_back(static_cast<std::uint16_t>(n));
    }
}

SKEIN_INLINE result<demand_id> demand_table::number(std::uint16_t cpus) {
    if (cpus <= 1) return demand_id(cpus);
    resources need;
    need.cpu = amount(cpus);
    return number(need, {});
}

SKEIN_INLINE result<demand_id> demand_table::number_of_text(std::string_view text, bool for_life) {
    return number_of_text(text, for_life, label_in(text));
}

SKEIN_INLINE result<demand_id> demand_table::number_of_text(std::string_view text, bool for_life,
                                                            std::string_view label) {
    const auto first = text.substr(0, text.find('\n'));
    auto rest = text.substr(std::min(first.size() + 1, text.size()));
    const auto folder = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
    auto env = parse_task_environment(rest, folder);
    if (!env) return env.error();
    const auto need = parse_resources(first.substr(0, first.find('@')));
    if (!need) return need.error();
    return number(*need, label, for_life, std::move(*env));
}

SKEIN_INLINE std::string_view demand_table::label_in(std::string_view text) noexcept {
    const auto first = text.substr(0, text.find('\n'));
    const auto at = first.find('@');
    return at == first.npos ? std::string_view() : first.substr(at + 1);
}

SKEIN_INLINE std::string demand_table::text(demand_id number) const {
    return text(number, detail::label_as_text(at(number)));
}

SKEIN_INLINE std::string demand_table::text(demand_id number, std::string_view label) const {
    const auto& one = at(number);
    return to_string(one.need) + detail::where_as_text(label, one.env);
}

SKEIN_INLINE result<demand_id> demand_table::number_on(demand_id number, std::string_view label) {
    const auto one = at(number); // a copy: the table may grow
    return this->number(one.need, label, one.for_life, one.env);
}

} // namespace skein::sched
