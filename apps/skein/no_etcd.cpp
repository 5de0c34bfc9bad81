// SPDX-License-Identifier: Apache-2.0
// In the place of etcd.cpp where libcurl is not there.
#include "run_command.hpp"

#include <skein/core/error.hpp>

namespace skein_program {

std::function<std::unique_ptr<skein::spmd::view_register>()> etcd_register_of(
    const run_arguments&) {
    throw skein::error(
        skein::errc::not_supported,
        "not supported: --rdzv-backend etcd in a skein that was built without libcurl")
        .with_hint("build it where libcurl4-openssl-dev is installed, or use --rdzv-backend "
                   "embedded");
}

} // namespace skein_program
