// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer cluster, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/cluster/access.hpp>
#include <skein/cluster/agent.hpp>
#include <skein/cluster/attempt_logs.hpp>
#include <skein/cluster/detail/broken_links.hpp>
#include <skein/cluster/detail/driver_waits.hpp>
#include <skein/cluster/detail/fair_shares.hpp>
#include <skein/cluster/detail/git_files.hpp>
#include <skein/cluster/detail/head_client.hpp>
#include <skein/cluster/detail/head_link.hpp>
#include <skein/cluster/detail/head_memory.hpp>
#include <skein/cluster/detail/heard_output.hpp>
#include <skein/cluster/detail/ignore_rules.hpp>
#include <skein/cluster/detail/job_book.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/detail/job_folders.hpp>
#include <skein/cluster/detail/job_runner.hpp>
#include <skein/cluster/detail/lease_table.hpp>
#include <skein/cluster/detail/leased_groups.hpp>
#include <skein/cluster/detail/marked_processes.hpp>
#include <skein/cluster/detail/namespaces.hpp>
#include <skein/cluster/detail/node_loads.hpp>
#include <skein/cluster/detail/node_table.hpp>
#include <skein/cluster/detail/output_relay.hpp>
#include <skein/cluster/detail/package_files.hpp>
#include <skein/cluster/detail/package_service.hpp>
#include <skein/cluster/detail/sent_output.hpp>
#include <skein/cluster/detail/start_failures.hpp>
#include <skein/cluster/detail/start_order.hpp>
#include <skein/cluster/detail/visited_spaces.hpp>
#include <skein/cluster/detail/worker_news.hpp>
#include <skein/cluster/head.hpp>
#include <skein/cluster/head_log.hpp>
#include <skein/cluster/job_progress.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/cluster/leased_ranks.hpp>
#include <skein/cluster/leased_workers.hpp>
#include <skein/cluster/load_history.hpp>
#include <skein/cluster/package.hpp>
#include <skein/cluster/package_scan.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/cluster/space_server.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/cluster/training_scale.hpp>

#include <skein/cluster/detail/access.ipp>
#include <skein/cluster/detail/agent.ipp>
#include <skein/cluster/detail/agent_entries.ipp>
#include <skein/cluster/detail/agent_load.ipp>
#include <skein/cluster/detail/agent_logs.ipp>
#include <skein/cluster/detail/agent_orders.ipp>
#include <skein/cluster/detail/attempt_logs.ipp>
#include <skein/cluster/detail/broken_links.ipp>
#include <skein/cluster/detail/driver_waits.ipp>
#include <skein/cluster/detail/fair_shares.ipp>
#include <skein/cluster/detail/git_files.ipp>
#include <skein/cluster/detail/head.ipp>
#include <skein/cluster/detail/head_client.ipp>
#include <skein/cluster/detail/head_jobs.ipp>
#include <skein/cluster/detail/head_leases.ipp>
#include <skein/cluster/detail/head_link.ipp>
#include <skein/cluster/detail/head_log.ipp>
#include <skein/cluster/detail/head_memory.ipp>
#include <skein/cluster/detail/head_nodes.ipp>
#include <skein/cluster/detail/head_orders.ipp>
#include <skein/cluster/detail/head_spaces.ipp>
#include <skein/cluster/detail/head_status.ipp>
#include <skein/cluster/detail/heard_output.ipp>
#include <skein/cluster/detail/ignore_rules.ipp>
#include <skein/cluster/detail/job_answers.ipp>
#include <skein/cluster/detail/job_book.ipp>
#include <skein/cluster/detail/job_folder.ipp>
#include <skein/cluster/detail/job_folders.ipp>
#include <skein/cluster/detail/job_progress.ipp>
#include <skein/cluster/detail/job_runner.ipp>
#include <skein/cluster/detail/jobs.ipp>
#include <skein/cluster/detail/lease_table.ipp>
#include <skein/cluster/detail/leased_groups.ipp>
#include <skein/cluster/detail/leased_pool.ipp>
#include <skein/cluster/detail/leased_ranks.ipp>
#include <skein/cluster/detail/leased_workers.ipp>
#include <skein/cluster/detail/load_history.ipp>
#include <skein/cluster/detail/marked_processes.ipp>
#include <skein/cluster/detail/namespaces.ipp>
#include <skein/cluster/detail/node_loads.ipp>
#include <skein/cluster/detail/node_table.ipp>
#include <skein/cluster/detail/output_relay.ipp>
#include <skein/cluster/detail/package.ipp>
#include <skein/cluster/detail/package_files.ipp>
#include <skein/cluster/detail/package_layout.ipp>
#include <skein/cluster/detail/package_scan.ipp>
#include <skein/cluster/detail/package_service.ipp>
#include <skein/cluster/detail/package_store.ipp>
#include <skein/cluster/detail/sent_output.ipp>
#include <skein/cluster/detail/space_server.ipp>
#include <skein/cluster/detail/start_failures.ipp>
#include <skein/cluster/detail/start_order.ipp>
#include <skein/cluster/detail/tools.ipp>
#include <skein/cluster/detail/training_scale.ipp>
#include <skein/cluster/detail/visited_spaces.ipp>
#include <skein/cluster/detail/worker_news.ipp>
