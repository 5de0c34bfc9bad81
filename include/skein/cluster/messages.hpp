// SPDX-License-Identifier: Apache-2.0
#pragma once
// What head, agents, drivers and tools of a cluster say to each other, over net::requests.
//
// A lease is room on a node for one worker of one driver: the driver asks the head for it, the head
// has the node's agent start the worker, and the worker connects to the driver. It is named by the
// driver's incarnation and the driver's count, so that its name means the same to a head that was
// started again.
//
//     node -> head    node_hello says who it is and which leases it holds; answered by node_welcome
//                     worker_ended      a worker has ended, or did not start
//     head -> node    start_worker_order, stop_worker_order, leave_cluster, node_drains
//     driver -> head  driver_hello      the same for a driver, with all leases it has or waits for
//                     want_lease, return_lease, keep_lease, lease_blocked, want_group, drop_group
//     head -> driver  lease_granted, lease_waits, lease_recalled, lease_ended, cluster_changed,
//                     group_placed, group_waits, group_refused, space_lost
//     driver -> head  enter_space answered by space_entered when the namespace has a space server
//     tool -> head    ask_status, ask_drain, ask_stop, ask_stop_space
//
// What workers print goes the same way, if its driver wants it, as fast as that prints: an agent
// sends one node_output per take_output, and the head asks for the next when the driver has said
// output_printed.
//
//     node -> head    output_waits, node_output
//     head -> node    take_output
//     head -> driver  worker_output
//     driver -> head  output_printed
//
//     tool -> head    submit_job, ask_jobs, follow_job, ask_log, stop_job, offer_package, put_blob
//     head -> tool    submit_reply, job_list, job_lines, job_log, stop_job_reply, package_wanted,
//                     blob_taken
//     node -> head    entry_started, job_rows, ask_package, ask_blob
//     head -> node    package_found, blob_piece, ask_node_log answered by node_log
//
//     node -> head    node_load         once a second, how busy it is
//     driver -> head  driver_calls      the same, how many calls it has made
//
//     driver -> head  loosen_group
//     tool -> head    ask_scale, which is passed on: head -> driver scale_training
//
// A node that drains is to be empty, by a deadline if there is one; ask_drain is answered with what
// becomes of each lease there.
//
//     driver -> head  lease_leaves, or keep_lease with the reason
//     node -> head    node_leaves       it is about to be taken away
//
// What attempts of jobs leave behind: see detail/run_messages.hpp; the page for a browser elsewhere:
// detail/forward_messages.hpp.
// With which keys who may send what to a head: cluster/rights.hpp, a row for each message.
//
// Both hellos may come again after a lost link, or to a head that knows nothing: its state is what
// they say.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/drain_messages.hpp>
#include <skein/cluster/detail/driver_messages.hpp>
#include <skein/cluster/detail/forward_messages.hpp>
#include <skein/cluster/detail/job_messages.hpp>
#include <skein/cluster/detail/lease_messages.hpp>
#include <skein/cluster/detail/load_messages.hpp>
#include <skein/cluster/detail/node_messages.hpp>
#include <skein/cluster/detail/output_messages.hpp>
#include <skein/cluster/detail/run_messages.hpp>
#include <skein/cluster/detail/tool_messages.hpp>
#include <skein/cluster/detail/training_messages.hpp>
#include <skein/net/requests.hpp>

namespace skein::cluster {

/// All of them: every decoder by its number.
using cluster_messages = net::message_table<
    node_hello, node_welcome, driver_hello, driver_welcome, want_lease, return_lease, lease_granted,
    lease_waits, lease_ended, lease_recalled, keep_lease, lease_blocked, want_group, drop_group,
    group_placed, group_waits, group_refused, enter_space, space_entered, space_lost,
    cluster_changed, start_worker_order, stop_worker_order, worker_ended, leave_cluster,
    node_drains, ask_status, cluster_status, ask_drain, drain_reply, ask_stop, stop_reply,
    ask_stop_space, stop_space_reply, output_waits, take_output, node_output, worker_output,
    output_printed, submit_job, submit_reply, ask_jobs, job_list, follow_job, job_lines, stop_job,
    stop_job_reply, entry_started, job_rows, offer_package, package_wanted, put_blob, blob_taken,
    ask_package, package_found, ask_blob, blob_piece, ask_login, login_reply, node_load,
    driver_calls, ask_log, job_log, ask_node_log, node_log, offer_set, set_wanted, put_run_piece,
    piece_taken, commit_set, set_committed, ask_sets, set_list, ask_set, set_found, ask_run_piece,
    put_package_piece, ask_sizes, sizes_found, open_forward, forward_opened, forward_bytes,
    forward_taken, take_forwarded, forwarded, lease_leaves, node_leaves, loosen_group, ask_scale,
    scale_reply, scale_training, training_scaled>;

} // namespace skein::cluster
