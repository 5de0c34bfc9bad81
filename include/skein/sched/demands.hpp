// SPDX-License-Identifier: Apache-2.0
#pragma once
// The different demands of a runtime's calls, each with a number: calls carry the number alone. And
// how a demand's label says where: on nodes with a label of their own, in a placement group, where
// an actor is, on all nodes in turn.
//
//     demand_table demands;
//     const auto number = demands.number(*parse_resources("gpu=1"), "zone=a").value();
//     demands.text(number);                                // "gpu=1@zone=a", as it travels

#include <skein/core/ids.hpp>
#include <skein/core/result.hpp>
#include <skein/sched/resources.hpp>
#include <skein/sched/scheduler.hpp>
#include <skein/sched/task_environment.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace skein::sched {

/// A demand among those of one runtime, which has given it the number; none: nothing is needed.
using demand_id = strong_id<struct demand_tag, std::uint16_t>;
/// One cpu, as of a call that says nothing.
inline constexpr demand_id one_cpu{1};

/// What a call needs, and on which nodes.
struct demand {
    resources need;
    std::string label;      ///< of the nodes: "zone=a", "node=n1"; empty: any; or spread_label
    task_environment env;   ///< of its process
    std::uint16_t cpus = 0; ///< need.cpu, rounded up; at least 1 if anything is needed at all
    bool only_cpus = true;  ///< nothing but cpus; any worker with so many could do it
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

/// The label of a demand that takes the nodes in turn. No label of a node has an @ in it.
inline constexpr std::string_view spread_label = "spread@";
/// Where the label of a demand, which names no group, lets it be.
[[nodiscard]] constraint where_labelled(const std::string& label);

/// Where a call may run, as a value. It travels as the label in the text of its demand; no label of a
/// node has an @ in it.
struct place {
    enum class kind : std::uint8_t {
        any,
        anywhere,    ///< "@*": as any, also for what is made in a group
        nodes,       ///< "zone=a": those with that label
        spread,      ///< "spread@": the nodes in turn
        group,       ///< "@3", "@3/0": a placement group, or one bundle of it
        named_group, ///< "@=/web", "@=2/web": the same by its name, as a worker says it
        actor,       ///< "@!7.12": where that actor is
    };
    kind what = kind::any;
    std::string name{}; ///< the label of nodes, or the name of a group
    std::uint64_t group = 0;
    int bundle = -1;       ///< -1: any
    bool captures = false; ///< "@3/0+", "@=2+/web": with what is made there
    actor_id actor{};

    [[nodiscard]] bool is(kind one) const noexcept { return what == one; }
    [[nodiscard]] std::string to_text() const;
    /// What is none of these is the label of nodes, and nobody has it if an @ is in it.
    [[nodiscard]] static place from_text(std::string_view text);
    friend bool operator==(const place&, const place&) = default;
};
/// The text of a group that is the place.
[[nodiscard]] std::string group_label(std::uint64_t group, int bundle);
/// False: the label names no group.
[[nodiscard]] bool parse_group_label(std::string_view label, std::uint64_t& group, int& bundle);

/// Numbers are given once and stay.
class demand_table {
public:
    static constexpr std::size_t most = 4096;

    demand_table();
    /// The number of a demand; new ones get the next.
    ///   errors  invalid_argument (no place could have it), exhausted (so many different ones)
    [[nodiscard]] result<demand_id> number(const resources& need, std::string_view label,
                                           bool for_life = false, task_environment env = {});
    /// Of whole cpus; those of a call that says nothing cost no search.
    [[nodiscard]] result<demand_id> number(std::uint16_t cpus);
    /// Of what text() says.
    [[nodiscard]] result<demand_id> number_of_text(std::string_view text, bool for_life = false);
    /// The same with another label than the one there.
    [[nodiscard]] result<demand_id> number_of_text(std::string_view text, bool for_life,
                                                   std::string_view label);
    /// Gives the numbers of demands in a placement group back. Nobody may use them any more.
    void forget_group(std::uint64_t group);
    /// Calls use(number) for each demand in a placement group.
    template <class Use>
    void for_each_in_group(std::uint64_t group, const Use& use) const {
        for (std::size_t n = 0; n < all_.size(); ++n)
            if (all_[n].group == group) use(demand_id(static_cast<std::uint16_t>(n)));
    }

    [[nodiscard]] const demand& at(demand_id number) const { return all_[number.value()]; }
    /// As it travels: "cpu=0.5,gpu=1@zone=a"; with an environment its folder and variables follow,
    /// a line each.
    [[nodiscard]] std::string text(demand_id number) const;
    /// The same with another label.
    [[nodiscard]] std::string text(demand_id number, std::string_view label) const;
    /// The label in such a text.
    [[nodiscard]] static std::string_view label_in(std::string_view text) noexcept;
    /// The number of the same demand on nodes with that label.
    [[nodiscard]] result<demand_id> number_on(demand_id number, std::string_view label);

private:
    std::deque<demand> all_;
    /// By need, by label, folder and variables as a text, and whether an actor's.
    std::map<std::tuple<resources, std::string, bool>, demand_id> numbers_;
    std::vector<demand_id> free_;
};

} // namespace skein::sched

#if SKEIN_HEADER_ONLY
#include <skein/sched/detail/demands.ipp>
#endif
