// SPDX-License-Identifier: Apache-2.0
#pragma once
// The variables by which torchrun tells a process its place, and `skein run` as well.

#include <array>

namespace skein::spmd::detail {

inline constexpr std::array torch_variables{"RANK",
                                            "WORLD_SIZE",
                                            "LOCAL_RANK",
                                            "GROUP_RANK",
                                            "LOCAL_WORLD_SIZE",
                                            "GROUP_WORLD_SIZE",
                                            "ROLE_RANK",
                                            "ROLE_WORLD_SIZE",
                                            "ROLE_NAME",
                                            "MASTER_ADDR",
                                            "MASTER_PORT",
                                            "TORCHELASTIC_RESTART_COUNT",
                                            "TORCHELASTIC_MAX_RESTARTS",
                                            "TORCHELASTIC_RUN_ID",
                                            "TORCHELASTIC_USE_AGENT_STORE"};

} // namespace skein::spmd::detail
