// SPDX-License-Identifier: Apache-2.0
#pragma once
// The different demands of a runtime's calls, each with a number: calls carry the number alone.

#include <skein/core/result.hpp>
#include <skein/proc/task_environment.hpp>
#include <skein/rt/options.hpp>
#include <skein/sched/resources.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace skein::rt::detail {

/// What a call needs, and on which nodes.
struct demand {
    sched::resources need;
    std::string label;          ///< of the nodes: "zone=a", "node=n1"; empty: any; or spread_label
    proc::task_environment env; ///< of its process
    std::uint16_t cpus = 0;     ///< need.cpu, rounded up; at least 1 if anything is needed at all
    bool only_cpus = true;      ///< nothing but cpus; any worker with so many could do it
    /// Whole cpus and no label: its number of cpus says it all.
    bool is_simple = true;
    bool for_life = false;   ///< of an actor: its worker serves nothing else, and ends with it
    std::uint64_t group = 0; ///< the placement group that the label names; 0: none
    int bundle = -1;         ///< of the group; -1: any
    bool spreads = false;    ///< over the nodes in turn
    bool captures =
        false; ///< calls that are made there are in the group, too, if they name no place

    /// Any worker may have it that has room.
    [[nodiscard]] bool is_anywhere() const noexcept { return label.empty() || spreads; }
};

/// Where a task of a worker is to run, as the label in the text of its demand: "@*" wherever there
/// is room, "@!7.12" where that actor is. As of a group ("@3", "@3/0"; with a + at the end for what
/// is made there, too) no label of a node begins so.
inline constexpr std::string_view anywhere_label = "@*";
[[nodiscard]] std::string actor_label(actor_id actor);
[[nodiscard]] bool parse_actor_label(std::string_view label, actor_id& actor);

/// Numbers are given once and stay.
class demand_table {
public:
    static constexpr std::size_t most = 4096;

    demand_table();
    /// The number of a demand; new ones get the next.
    ///   errors  invalid_argument (no place could have it), exhausted (so many different ones)
    [[nodiscard]] result<std::uint16_t> number(const sched::resources& need, std::string_view label,
                                               bool for_life = false,
                                               proc::task_environment env = {});
    /// Of whole cpus; those of a call that says nothing cost no search.
    [[nodiscard]] result<std::uint16_t> number(std::uint16_t cpus);
    /// Of what a caller asks for.
    [[nodiscard]] result<std::uint16_t> number(const call_options& how, bool for_life = false);
    /// Of what text() says.
    [[nodiscard]] result<std::uint16_t> number_of_text(std::string_view text,
                                                       bool for_life = false);
    /// The same with another label than the one there.
    [[nodiscard]] result<std::uint16_t> number_of_text(std::string_view text, bool for_life,
                                                       std::string_view label);
    /// Gives the numbers of demands in a placement group back. Nobody may use them any more.
    void forget_group(std::uint64_t group);
    /// Calls use(number) for each demand in a placement group.
    template <class Use>
    void for_each_in_group(std::uint64_t group, const Use& use) const {
        for (std::size_t n = 0; n < all_.size(); ++n)
            if (all_[n].group == group) use(static_cast<std::uint16_t>(n));
    }

    [[nodiscard]] const demand& at(std::uint16_t number) const { return all_[number]; }
    /// As it travels: "cpu=0.5,gpu=1@zone=a"; with an environment its folder and variables follow,
    /// a line each.
    [[nodiscard]] std::string text(std::uint16_t number) const;
    /// The same with another label.
    [[nodiscard]] std::string text(std::uint16_t number, std::string_view label) const;
    /// The label in such a text.
    [[nodiscard]] static std::string_view label_in(std::string_view text) noexcept;
    /// The number of the same demand on nodes with that label.
    [[nodiscard]] result<std::uint16_t> number_on(std::uint16_t number, std::string_view label);

private:
    std::deque<demand> all_;
    /// By need, by label, folder and variables as a text, and whether an actor's.
    std::map<std::tuple<sched::resources, std::string, bool>, std::uint16_t> numbers_;
    std::vector<std::uint16_t> free_;
};

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/demand_table.ipp>
#endif
