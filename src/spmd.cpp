// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer spmd, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/spmd/detail/elastic_client.hpp>
#include <skein/spmd/detail/host_member.hpp>
#include <skein/spmd/detail/keeper_links.hpp>
#include <skein/spmd/elastic_coordinator.hpp>
#include <skein/spmd/elastic_host.hpp>
#include <skein/spmd/elastic_member.hpp>
#include <skein/spmd/elastic_run.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/group.hpp>
#include <skein/spmd/host_share.hpp>
#include <skein/spmd/joined_group.hpp>
#include <skein/spmd/leave_notices.hpp>
#include <skein/spmd/local_keeper.hpp>
#include <skein/spmd/loss_listeners.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/memory_register.hpp>
#include <skein/spmd/program_kind.hpp>
#include <skein/spmd/program_run.hpp>
#include <skein/spmd/rank_entry.hpp>
#include <skein/spmd/rank_output.hpp>
#include <skein/spmd/run_files.hpp>
#include <skein/spmd/settings.hpp>
#include <skein/spmd/supervisor.hpp>
#include <skein/spmd/undecided_ranks.hpp>

#include <skein/spmd/detail/elastic_client.ipp>
#include <skein/spmd/detail/elastic_coordinator.ipp>
#include <skein/spmd/detail/elastic_host.ipp>
#include <skein/spmd/detail/elastic_member.ipp>
#include <skein/spmd/detail/elastic_proposals.ipp>
#include <skein/spmd/detail/elastic_refusals.ipp>
#include <skein/spmd/detail/elastic_run.ipp>
#include <skein/spmd/detail/environment.ipp>
#include <skein/spmd/detail/group.ipp>
#include <skein/spmd/detail/group_client.ipp>
#include <skein/spmd/detail/host_member.ipp>
#include <skein/spmd/detail/host_share.ipp>
#include <skein/spmd/detail/joined_group.ipp>
#include <skein/spmd/detail/keeper_links.ipp>
#include <skein/spmd/detail/leave_notices.ipp>
#include <skein/spmd/detail/local_keeper.ipp>
#include <skein/spmd/detail/loss_listeners.ipp>
#include <skein/spmd/detail/meeting.ipp>
#include <skein/spmd/detail/memory_register.ipp>
#include <skein/spmd/detail/program_kind.ipp>
#include <skein/spmd/detail/program_run.ipp>
#include <skein/spmd/detail/rank_entry.ipp>
#include <skein/spmd/detail/rank_output.ipp>
#include <skein/spmd/detail/run_files.ipp>
#include <skein/spmd/detail/settings.ipp>
#include <skein/spmd/detail/supervisor.ipp>
#include <skein/spmd/detail/undecided_ranks.ipp>
