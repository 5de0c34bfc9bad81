// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the ranks of a launched world meet, and with which secret.
//
// Under a supervisor both come from it. Under srun, mpirun or torchrun rank 0 hosts the group at an
// address every rank computes alike, and the secret is the user's own: SKEIN_TOKEN,
// SKEIN_TOKEN_FILE, or ~/.config/skein/token, made on first use, which hosts with a common home
// folder share.

#include <skein/core/config.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/spmd/environment.hpp>

namespace skein::spmd {

/// Variables a supervisor gives its ranks besides SKEIN_RANK and its like.
inline constexpr const char* group_variable =
    "SKEIN_GROUP"; ///< address of the supervisor's group server
inline constexpr const char* token_variable = "SKEIN_TOKEN"; ///< 64 hexadecimal digits

/// True in a rank that a skein supervisor has started: the supervisor serves the group and reports.
[[nodiscard]] bool is_supervised(const variable_reader& read = process_environment());

/// Where the group server of this world is (or, for rank 0, is to be). All ranks on one host meet
/// on loopback.
///   errors  invalid_argument: ranks on several hosts and nobody says where rank 0 is
[[nodiscard]] net::address meeting_point(const launch_environment& where,
                                         const variable_reader& read = process_environment());

/// What rank 0 listens on: the meeting point, on all interfaces when other hosts have to reach it.
[[nodiscard]] net::address listening_point(const launch_environment& where,
                                           const variable_reader& read = process_environment());

/// The secret of this world.
///   errors  permission_denied: the token file is readable by others; invalid_argument: it is no
///           token; io: it cannot be made
[[nodiscard]] net::token group_token(const variable_reader& read = process_environment());

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/meeting.ipp>
#endif
