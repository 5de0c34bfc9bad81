// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/weight_map.hpp>.

#include <skein/core/error.hpp>
#include <skein/train/detail/checkpoint_table.ipp>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

// ---- patterns -----------------------------------------------------------------------------------

namespace detail {

/// The part of a name before its first dot, which is taken off.
SKEIN_INLINE std::string_view take_part(std::string_view& name) {
    const auto dot = std::min(name.find('.'), name.size());
    const auto part = name.substr(0, dot);
    name.remove_prefix(std::min(dot + 1, name.size()));
    return part;
}

/// What the stars of a pattern stand for in a name that fits.
SKEIN_INLINE std::optional<std::vector<std::string>> match_name(std::string_view pattern,
                                                                std::string_view name) {
    std::vector<std::string> stars;
    while (!pattern.empty() && !name.empty()) {
        const auto wanted = take_part(pattern);
        const auto part = take_part(name);
        if (wanted == "*")
            stars.emplace_back(part);
        else if (wanted != part)
            return std::nullopt;
    }
    if (!pattern.empty() || !name.empty()) return std::nullopt;
    return stars;
}

SKEIN_INLINE std::string fill_pattern(std::string_view pattern,
                                      const std::vector<std::string>& stars) {
    std::string name;
    std::size_t next = 0;
    while (!pattern.empty()) {
        const auto part = take_part(pattern);
        if (!name.empty()) name += '.';
        name += part == "*" ? std::string_view(stars.at(next++)) : part;
    }
    return name;
}

SKEIN_INLINE std::size_t count_stars(std::string_view pattern) {
    std::size_t stars = 0;
    while (!pattern.empty())
        if (take_part(pattern) == "*") ++stars;
    return stars;
}

/// A rule with its stars filled in.
struct rule_use {
    std::vector<std::string> theirs{}, ours{};
    bool turned = false;
    std::vector<std::int64_t> shares{};
};

SKEIN_INLINE rule_use use_rule_for(const weight_map& map, const std::string& ours) {
    for (const auto& rule : map.rules())
        for (const auto& pattern : rule.ours)
            if (const auto stars = match_name(pattern, ours)) {
                rule_use use{.turned = rule.turned, .shares = rule.shares};
                for (const auto& each : rule.theirs)
                    use.theirs.push_back(fill_pattern(each, *stars));
                for (const auto& each : rule.ours) use.ours.push_back(fill_pattern(each, *stars));
                return use;
            }
    return {.theirs = {ours}, .ours = {ours}};
}

/// The rows of `parts` tensors that are `total` rows together; nothing when they cannot be.
SKEIN_INLINE std::optional<std::vector<std::int64_t>> share_rows(
    std::int64_t total, std::size_t parts, const std::vector<std::int64_t>& shares) {
    const auto weights = shares.empty() ? std::vector<std::int64_t>(parts, 1) : shares;
    const auto sum = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
    if (total % sum != 0) return std::nullopt;
    std::vector<std::int64_t> rows;
    for (const auto weight : weights) rows.push_back(total / sum * weight);
    return rows;
}

SKEIN_INLINE std::vector<std::int64_t> turned_shape(std::vector<std::int64_t> shape) {
    if (shape.size() == 2) std::swap(shape[0], shape[1]);
    return shape;
}

/// "F32 [2, 3]"
SKEIN_INLINE std::string tensor_text(std::string_view dtype,
                                     const std::vector<std::int64_t>& shape) {
    return fmt::format("{} {}", dtype, shape_text(shape));
}

} // namespace detail

// ---- the table ----------------------------------------------------------------------------------

SKEIN_INLINE weight_map& weight_map::add(weight_rule rule) {
    const auto refuse = [&](const char* why) {
        throw error(errc::invalid_argument,
                    fmt::format("a rule of a weight map for '{}' {}",
                                rule.ours.empty() ? "" : rule.ours.front(), why))
            .with_hint("one tensor on at least one side, the same stars everywhere, and of shares "
                       "as many as tensors, each at least 1");
    };
    if (rule.theirs.empty() || rule.ours.empty()) refuse("has no tensor on one side");
    if (rule.theirs.size() > 1 && rule.ours.size() > 1) refuse("has several on both sides");
    const auto stars = detail::count_stars(rule.ours.front());
    for (const auto* side : {&rule.theirs, &rule.ours})
        for (const auto& pattern : *side)
            if (detail::count_stars(pattern) != stars) refuse("has other stars on both sides");
    if (!rule.shares.empty() &&
        (rule.shares.size() != std::max(rule.theirs.size(), rule.ours.size()) ||
         std::ranges::any_of(rule.shares, [](auto share) { return share < 1; })))
        refuse("has shares that do not fit its tensors");
    rules_.push_back(std::move(rule));
    return *this;
}

SKEIN_INLINE weight_map& weight_map::same(std::string theirs, std::string ours) {
    return add({.theirs = {std::move(theirs)}, .ours = {std::move(ours)}});
}
SKEIN_INLINE weight_map& weight_map::turned(std::string theirs, std::string ours) {
    return add({.theirs = {std::move(theirs)}, .ours = {std::move(ours)}, .turned = true});
}
SKEIN_INLINE weight_map& weight_map::joined(std::vector<std::string> theirs, std::string ours,
                                            std::vector<std::int64_t> shares, bool turned) {
    return add({std::move(theirs), {std::move(ours)}, turned, std::move(shares)});
}
SKEIN_INLINE weight_map& weight_map::split(std::string theirs, std::vector<std::string> ours,
                                           std::vector<std::int64_t> shares, bool turned) {
    return add({{std::move(theirs)}, std::move(ours), turned, std::move(shares)});
}
SKEIN_INLINE weight_map& weight_map::tied(std::string again, std::string theirs) {
    if (detail::count_stars(again) != detail::count_stars(theirs))
        throw error(
            errc::invalid_argument,
            fmt::format("a weight map ties '{}' to '{}', which has other stars", again, theirs))
            .with_hint("the n-th star of one name is the n-th of the other");
    ties_.emplace_back(std::move(again), std::move(theirs));
    return *this;
}
SKEIN_INLINE weight_map& weight_map::ignored(std::string theirs) {
    ignored_.push_back(std::move(theirs));
    return *this;
}
SKEIN_INLINE weight_map& weight_map::optional_prefix(std::string prefix) {
    prefix_ = std::move(prefix);
    return *this;
}

SKEIN_INLINE bool weight_map::is_ignored(std::string_view theirs) const {
    return std::ranges::any_of(
        ignored_, [&](const auto& pattern) { return !!detail::match_name(pattern, theirs); });
}

SKEIN_INLINE bool weight_map::speaks_of(std::string_view theirs) const {
    const auto fits = [&](const std::string& pattern) {
        return !!detail::match_name(pattern, theirs);
    };
    return is_ignored(theirs) ||
           std::ranges::any_of(
               rules_, [&](const auto& rule) { return std::ranges::any_of(rule.theirs, fits); }) ||
           std::ranges::any_of(ties_, [&](const auto& tie) { return fits(tie.first); });
}

SKEIN_INLINE std::string weight_map::full_name(const std::string& stored) const {
    if (prefix_.empty() || speaks_of(stored) || !speaks_of(prefix_ + stored)) return stored;
    return prefix_ + stored;
}

// ---- into a module ------------------------------------------------------------------------------

namespace detail {

/// At most 20 lines of one kind, and how many more there are.
class complaint_list {
public:
    void add(std::string line) {
        if (++count_ <= 20) text_ += (text_.empty() ? "" : ", ") + std::move(line);
    }
    [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
    [[nodiscard]] std::size_t count() const noexcept { return count_; }
    [[nodiscard]] std::string text() const {
        return count_ > 20 ? fmt::format("{} and {} more", text_, count_ - 20) : text_;
    }

private:
    std::size_t count_ = 0;
    std::string text_;
};

/// Compares both sides and gathers all that is wrong.
class weight_planner {
public:
    weight_planner(const weight_map& map, const source_table& theirs,
                   const std::vector<wanted_tensor>& ours)
        : map_(map), theirs_(theirs) {
        for (const auto& [name, tensor] : theirs)
            if (!stored_.emplace(map.full_name(name), name).second)
                misfits_.add(fmt::format("{} is there twice, with and without its beginning",
                                         map.full_name(name)));
        for (const auto& w : ours) wanted_.emplace(w.name, &w);
    }

    void tie() {
        std::vector<std::string> further;
        for (const auto& [full, stored] : stored_)
            for (const auto& [again, first] : map_.ties())
                if (match_name(again, full)) {
                    further.push_back(full);
                    break;
                }
        for (const auto& full : further) {
            const auto stored = stored_.at(full);
            stored_.erase(full);
            for (const auto& [again, first] : map_.ties())
                if (const auto stars = match_name(again, full)) {
                    const auto [held, is_new] =
                        stored_.emplace(fill_pattern(first, *stars), stored);
                    if (!is_new) require_equal(held->second, stored);
                    break;
                }
        }
    }

    void plan(const wanted_tensor& wanted) {
        auto use = use_rule_for(map_, wanted.name);
        auto chosen = wanted.name;
        bool found = has_all(use);
        for (const auto& other : wanted.other_names) {
            const auto again = use_rule_for(map_, other);
            if (!has_all(again)) continue;
            for (const auto& name : again.theirs) used_.insert(name);
            if (!found) {
                use = again;
                chosen = other;
                found = true;
            } else if (again.theirs != use.theirs && again.theirs.size() == use.theirs.size()) {
                for (std::size_t i = 0; i < use.theirs.size(); ++i)
                    require_equal(stored_.at(use.theirs[i]), stored_.at(again.theirs[i]));
            }
        }
        for (const auto& name : use.theirs) {
            used_.insert(name);
            if (!stored_.contains(name) && missing_names_.insert(name).second) missing_.add(name);
        }
        if (found) fill(wanted, chosen, use);
    }

    [[nodiscard]] weight_plan finish(bool strict, const std::string& where) {
        for (const auto& [full, stored] : stored_)
            if (strict && !used_.contains(full) && !map_.is_ignored(full)) additional_.add(stored);
        if (missing_.empty() && additional_.empty() && misfits_.empty()) return std::move(plan_);
        std::string text = "the weights do not fit the model";
        const auto say = [&](const complaint_list& list, const char* what) {
            if (!list.empty()) text += fmt::format("; {} {}: {}", list.count(), what, list.text());
        };
        say(missing_, "missing in the folder");
        say(additional_, "that the model has not");
        say(misfits_, "of another type or shape");
        const bool only_missing = additional_.empty() && misfits_.empty();
        throw error(only_missing ? errc::not_found : errc::mismatch, std::move(text))
            .with_where(where)
            .with_hint(additional_.empty()
                           ? "build the model as it was trained, or give the map of its family"
                           : "build the model as it was trained, give the map of its family, or "
                             "load with strict = false");
    }

private:
    [[nodiscard]] bool has_all(const rule_use& use) const {
        return std::ranges::all_of(use.theirs,
                                   [&](const auto& name) { return stored_.contains(name); });
    }
    [[nodiscard]] const source_tensor& tensor(const std::string& full) const {
        return theirs_.at(stored_.at(full));
    }
    void require_equal(const std::string& a, const std::string& b) {
        if (theirs_.at(a) != theirs_.at(b))
            misfits_.add(fmt::format("{} is {} and {}, which is the same tensor, {}", a,
                                     tensor_text(theirs_.at(a).dtype, theirs_.at(a).shape), b,
                                     tensor_text(theirs_.at(b).dtype, theirs_.at(b).shape)));
        else
            plan_.equal.emplace_back(a, b);
    }

    /// Whether one of theirs can be rows of the wanted tensor; else it is said.
    bool fits(const wanted_tensor& wanted, const rule_use& use, const std::string& full) {
        const auto& t = tensor(full);
        const auto shape = use.turned ? turned_shape(t.shape) : t.shape;
        const bool is_part = use.theirs.size() > 1 || use.ours.size() > 1;
        bool good =
            t.dtype == wanted.dtype || (is_float_type(t.dtype) && is_float_type(wanted.dtype));
        good = good && (!use.turned || t.shape.size() == 2);
        if (is_part)
            good = good && !shape.empty() && shape.size() == wanted.shape.size() &&
                   std::equal(shape.begin() + 1, shape.end(), wanted.shape.begin() + 1);
        else
            good = good && shape == wanted.shape;
        if (!good)
            misfits_.add(fmt::format("{} is {}{}, the model's {}{} is {}", stored_.at(full),
                                     tensor_text(t.dtype, t.shape),
                                     use.turned ? ", stored turned round" : "", wanted.name,
                                     is_part ? ", of which it has rows," : "",
                                     tensor_text(wanted.dtype, wanted.shape)));
        return good;
    }

    /// The rows of each tensor of a side, and all of them.
    template <class ShapeOf>
    [[nodiscard]] static std::vector<std::int64_t> rows_in(const std::vector<std::string>& names,
                                                           const ShapeOf& shape_of) {
        std::vector<std::int64_t> rows;
        for (const auto& name : names) rows.push_back(rows_of(shape_of(name)));
        return rows;
    }

    void fill(const wanted_tensor& wanted, const std::string& chosen, const rule_use& use) {
        for (const auto& name : use.theirs)
            if (!fits(wanted, use, name)) return;
        for (const auto& name : use.ours)
            if (name != chosen && !wanted_.contains(name)) {
                misfits_.add(fmt::format("{} is split over {}, and the model has no {}",
                                         stored_.at(use.theirs[0]), chosen, name));
                return;
            }
        const auto theirs = rows_in(use.theirs, [&](const std::string& name) {
            return use.turned ? turned_shape(tensor(name).shape) : tensor(name).shape;
        });
        const auto ours = rows_in(use.ours, [&](const std::string& name) {
            return name == chosen ? wanted.shape : wanted_.at(name)->shape;
        });
        const auto total = std::accumulate(theirs.begin(), theirs.end(), std::int64_t{0});
        const auto& several = use.theirs.size() > 1 ? theirs : ours;
        const bool as_shared = share_rows(total, several.size(), use.shares) == several;
        if (total != std::accumulate(ours.begin(), ours.end(), std::int64_t{0}) || !as_shared) {
            misfits_.add(fmt::format("{} of {} rows {} {} of {} rows, which the map shares out "
                                     "otherwise",
                                     stored_.at(use.theirs[0]), shape_text(theirs),
                                     use.theirs.size() > 1 ? "and others for" : "for", chosen,
                                     shape_text(ours)));
            return;
        }
        const auto place = std::ranges::find(use.ours, chosen) - use.ours.begin();
        const auto begin = std::accumulate(ours.begin(), ours.begin() + place, std::int64_t{0});
        add_pieces(wanted, use, theirs, begin);
    }

    void add_pieces(const wanted_tensor& wanted, const rule_use& use,
                    const std::vector<std::int64_t>& theirs, std::int64_t begin) {
        planned_tensor planned{wanted.name, wanted.dtype, wanted.shape, use.turned, {}};
        const auto end = begin + rows_of(wanted.shape);
        std::int64_t first = 0; // of a tensor of theirs, in all rows
        for (std::size_t i = 0; i < theirs.size(); first += theirs[i++]) {
            const auto from = std::max(begin, first), to = std::min(end, first + theirs[i]);
            if (from < to)
                planned.pieces.push_back(
                    {stored_.at(use.theirs[i]), from - first, to - from, from - begin});
        }
        plan_.tensors.push_back(std::move(planned));
    }

    const weight_map& map_;
    const source_table& theirs_;
    std::map<std::string, std::string> stored_; // by the name in the map
    std::map<std::string, const wanted_tensor*> wanted_;
    std::set<std::string> used_, missing_names_;
    complaint_list missing_, additional_, misfits_;
    weight_plan plan_;
};

} // namespace detail

SKEIN_INLINE weight_plan plan_weights(const weight_map& map, const source_table& theirs,
                                      const std::vector<wanted_tensor>& ours, bool strict,
                                      const std::string& where) {
    detail::weight_planner planner(map, theirs, ours);
    planner.tie();
    for (const auto& wanted : ours) planner.plan(wanted);
    return planner.finish(strict, where);
}

// ---- out of a module ----------------------------------------------------------------------------

namespace detail {

/// What is stored in a folder for tensors of a module that one rule is about.
SKEIN_INLINE void add_stored(weight_plan& plan, const rule_use& use, const source_table& ours) {
    const auto refuse = [&](std::string why) {
        return error(errc::mismatch, std::move(why))
            .with_hint("the map is for another family of models, or the model is a part of one");
    };
    std::vector<std::int64_t> rows;
    std::int64_t total = 0;
    for (const auto& name : use.ours) {
        const auto found = ours.find(name);
        if (found == ours.end())
            throw refuse(fmt::format("{} needs {}, which the model has not", use.theirs[0], name));
        const auto &first = ours.at(use.ours[0]).shape, &shape = found->second.shape;
        if ((use.turned && shape.size() != 2) || shape.size() != first.size() ||
            (!first.empty() && !std::equal(first.begin() + 1, first.end(), shape.begin() + 1)))
            throw refuse(fmt::format("{} of shape {} cannot be stored as {}", name,
                                     shape_text(shape), use.theirs[0]));
        rows.push_back(rows_of(shape));
        total += rows.back();
    }
    const auto stored = share_rows(
        total, use.theirs.size(), use.theirs.size() > 1 ? use.shares : std::vector<std::int64_t>{});
    if (!stored)
        throw refuse(fmt::format("{} rows of {} cannot be shared out over {} tensors as the map "
                                 "says",
                                 total, use.ours[0], use.theirs.size()));
    const auto& like = ours.at(use.ours[0]);
    std::int64_t first = 0; // of a tensor of theirs, in all rows
    for (std::size_t j = 0; j < use.theirs.size(); first += (*stored)[j++]) {
        auto shape = like.shape;
        if (!shape.empty()) shape[0] = (*stored)[j];
        planned_tensor planned{
            use.theirs[j], like.dtype, use.turned ? turned_shape(shape) : shape, use.turned, {}};
        std::int64_t begin = 0; // of a tensor of ours
        for (std::size_t k = 0; k < rows.size(); begin += rows[k++]) {
            const auto from = std::max(first, begin);
            const auto to = std::min(first + (*stored)[j], begin + rows[k]);
            if (from < to)
                planned.pieces.push_back({use.ours[k], from - begin, to - from, from - first});
        }
        plan.tensors.push_back(std::move(planned));
    }
}

} // namespace detail

SKEIN_INLINE weight_plan plan_export(const weight_map& map, const source_table& ours) {
    weight_plan plan;
    std::set<std::string> done;
    for (const auto& [name, tensor] : ours) {
        const auto use = detail::use_rule_for(map, name);
        if (done.insert(use.theirs[0]).second) detail::add_stored(plan, use, ours);
    }
    return plan;
}

} // namespace skein::train
