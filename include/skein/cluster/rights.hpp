// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which keys may say what to a head, in one table: for each message of a cluster, the kinds of keys
// that may send it, and about what. A message without a row does not compile. A head looks here in
// front of all of its handlers (detail/rights_gate.hpp).
//
//     cluster::reach_of(cluster::ask_stop::number, net::key_kind::attempt)   // reach::nothing
//
// The token itself may send all that a head takes. The other kinds:
//
//     node          is a node: says what it runs, asks for what it is to start
//     attempt       one attempt of a job, until that has ended: drives workers, ranks, groups and
//                   namespaces of its job, and reads that job's state and lines
//     space-server  the same for one namespace
//     submit        submits, stops and reads all jobs, and looks at the cluster
//     view          looks at all of that

#include <skein/core/config.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/net/key_name.hpp>
#include <skein/net/message.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace skein::cluster {

/// About what a key may send a message.
enum class reach : std::uint8_t {
    nothing,    ///< it may not
    own_driver, ///< of the driver that has said hello over this link: others cannot be named
    own_job,
    own_space, ///< a namespace: the one that it serves, or one that its job has begun
    anything,
};

/// What is sent, and how far the keys of each kind reach with it.
struct rights_row {
    std::uint16_t number = 0;
    std::string_view what; ///< "ending the cluster", for who is refused
    bool of_head = false;  ///< only a head sends it: none may send it to one
    std::array<reach, net::key_kind_names.size()> by_kind{}; ///< by key_kind
};

namespace detail {

template <net::message M>
[[nodiscard]] consteval rights_row row(std::string_view what, reach node, reach attempt,
                                       reach space_server, reach submit, reach view) {
    return {M::number, what, false, {reach::anything, node, attempt, space_server, submit, view}};
}
/// An answer or an order.
template <net::message M>
[[nodiscard]] consteval rights_row head_says() {
    return {M::number, "speaking as a head", true, {}};
}

} // namespace detail

// clang-format off
/// The table.
inline constexpr auto rights = [] {
    using detail::head_says, detail::row;
    constexpr auto none = reach::nothing, driver = reach::own_driver, job = reach::own_job,
                   space = reach::own_space, all = reach::anything;
    return std::array{
        //                                                            node  attempt server submit view
        row<node_hello>("joining as a node",                          all,  none,   none,  none,  none),
        row<worker_ended>("telling what a node runs",                 all,  none,   none,  none,  none),
        row<output_waits>("telling what a node runs",                 all,  none,   none,  none,  none),
        row<node_output>("telling what a node runs",                  all,  none,   none,  none,  none),
        row<entry_started>("telling what a node runs",                all,  none,   none,  none,  none),
        row<job_rows>("telling what a node runs",                     all,  none,   none,  none,  none),
        row<node_leaves>("telling what a node runs",                  all,  none,   none,  none,  none),
        row<node_load>("telling how busy a node is",                  all,  none,   none,  none,  none),
        row<ask_package>("reading files of jobs",                     all,  none,   none,  none,  none),
        row<ask_blob>("reading files of jobs",                        all,  none,   none,  none,  none),

        row<offer_set>("keeping what jobs leave behind",              all,  none,   none,  none,  none),
        row<put_run_piece>("keeping what jobs leave behind",          all,  none,   none,  none,  none),
        row<commit_set>("keeping what jobs leave behind",             all,  none,   none,  none,  none),

        row<driver_hello>("running a program on the cluster",         none, job,    space, none,  none),
        row<want_lease>("asking for workers",                         none, driver, driver, none, none),
        row<return_lease>("giving workers back",                      none, driver, driver, none, none),
        row<keep_lease>("keeping workers",                            none, driver, driver, none, none),
        row<lease_leaves>("telling what leaves a node",               none, driver, driver, none, none),
        row<lease_blocked>("telling that workers wait",               none, driver, driver, none, none),
        row<want_group>("asking for a placement group",               none, driver, driver, none, none),
        row<loosen_group>("loosening a placement group",              none, driver, driver, none, none),
        row<drop_group>("dropping a placement group",                 none, driver, driver, none, none),
        row<output_printed>("taking what workers print",              none, driver, driver, none, none),
        row<driver_calls>("telling calls of a program",               none, driver, driver, none, none),
        row<enter_space>("entering a namespace",                      none, all,    all,   none,  none),

        row<ask_status>("looking at the cluster",                     none, job,    none,  all,   all),
        row<ask_drain>("draining a node",                             none, none,   none,  none,  none),
        row<ask_stop>("ending the cluster",                           none, none,   none,  none,  none),
        row<ask_stop_space>("ending a namespace",                     none, space,  none,  none,  none),
        row<ask_login>("opening the page of the cluster",             none, none,   none,  all,   none),
        row<open_forward>("opening the page of the cluster",          none, none,   none,  all,   none),
        row<forward_bytes>("opening the page of the cluster",         none, none,   none,  all,   none),
        row<take_forwarded>("opening the page of the cluster",        none, none,   none,  all,   none),

        row<submit_job>("submitting a job",                           none, none,   none,  all,   none),
        row<offer_package>("sending files of a job",                  none, none,   none,  all,   none),
        row<put_blob>("sending files of a job",                       none, none,   none,  all,   none),
        row<put_package_piece>("sending files of a job",              none, none,   none,  all,   none),
        row<ask_sizes>("sending files of a job",                      none, none,   none,  all,   none),
        row<ask_sets>("reading files that a job has left",            all,  job,    none,  all,   all),
        row<ask_set>("reading files that a job has left",             all,  job,    none,  all,   all),
        row<ask_run_piece>("reading files that a job has left",       all,  job,    none,  all,   all),
        row<ask_jobs>("looking at jobs",                              none, job,    none,  all,   all),
        row<follow_job>("reading lines of a job",                     none, job,    none,  all,   all),
        row<ask_log>("reading lines of a job",                        none, job,    none,  all,   all),
        row<ask_scale>("scaling a job",                               none, job,    none,  all,   none),
        row<stop_job>("stopping a job",                               none, job,    none,  all,   none),

        head_says<node_welcome>(), head_says<driver_welcome>(), head_says<lease_granted>(),
        head_says<lease_waits>(), head_says<lease_ended>(), head_says<lease_recalled>(),
        head_says<group_placed>(), head_says<group_waits>(), head_says<group_refused>(),
        head_says<space_entered>(), head_says<space_lost>(), head_says<cluster_changed>(),
        head_says<start_worker_order>(), head_says<stop_worker_order>(),
        head_says<leave_cluster>(), head_says<node_drains>(), head_says<cluster_status>(),
        head_says<drain_reply>(), head_says<stop_reply>(), head_says<stop_space_reply>(),
        head_says<take_output>(), head_says<worker_output>(), head_says<submit_reply>(),
        head_says<job_list>(), head_says<job_lines>(), head_says<stop_job_reply>(),
        head_says<package_wanted>(), head_says<blob_taken>(), head_says<package_found>(),
        head_says<blob_piece>(), head_says<login_reply>(), head_says<job_log>(),
        head_says<ask_node_log>(), head_says<node_log>(), head_says<set_wanted>(),
        head_says<piece_taken>(), head_says<set_committed>(), head_says<set_list>(),
        head_says<set_found>(), head_says<sizes_found>(), head_says<forward_opened>(),
        head_says<forward_taken>(), head_says<forwarded>(), head_says<scale_reply>(),
        head_says<scale_training>(), head_says<training_scaled>(),
    };
}();
// clang-format on

/// nullptr: there is no such message.
[[nodiscard]] constexpr const rights_row* rights_of(std::uint16_t number) noexcept {
    const auto* const found = std::find_if(
        rights.begin(), rights.end(), [&](const rights_row& one) { return one.number == number; });
    return found == rights.end() ? nullptr : found;
}

/// How far keys of a kind reach with a message; nothing: no such message, or no such kind.
[[nodiscard]] constexpr reach reach_of(std::uint16_t number, net::key_kind kind) noexcept {
    const auto* const row = rights_of(number);
    if (row == nullptr || !net::is_known(kind)) return reach::nothing;
    return row->by_kind.at(static_cast<std::size_t>(kind));
}

namespace detail {

template <class... Messages>
[[nodiscard]] consteval bool all_have_rights(net::message_table<Messages...>) {
    return ((rights_of(Messages::number) != nullptr) && ...) &&
           sizeof...(Messages) == rights.size();
}

} // namespace detail

static_assert(detail::all_have_rights(cluster_messages()),
              "each message of cluster_messages needs one row in cluster/rights.hpp: who may send "
              "it to a head, and about what");

} // namespace skein::cluster
