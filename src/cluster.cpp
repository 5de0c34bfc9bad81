// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer cluster, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif

#include <skein/cluster/environment.hpp>
#include <skein/cluster/group.hpp>
#include <skein/cluster/loss_listeners.hpp>
#include <skein/cluster/meeting.hpp>
#include <skein/cluster/membership.hpp>
#include <skein/cluster/settings.hpp>
#include <skein/cluster/supervisor.hpp>

#include <skein/cluster/detail/environment.ipp>
#include <skein/cluster/detail/group.ipp>
#include <skein/cluster/detail/group_client.ipp>
#include <skein/cluster/detail/loss_listeners.ipp>
#include <skein/cluster/detail/meeting.ipp>
#include <skein/cluster/detail/membership.ipp>
#include <skein/cluster/detail/settings.ipp>
#include <skein/cluster/detail/supervisor.ipp>
