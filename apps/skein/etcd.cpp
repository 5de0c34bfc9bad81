// SPDX-License-Identifier: Apache-2.0
// The register of `skein run --rdzv-backend etcd`.
#include "run_command.hpp"

#include <skein/spmd/etcd_register.hpp>

#include <string_view>

namespace skein_program {

std::function<std::unique_ptr<skein::spmd::view_register>()> etcd_register_of(
    const run_arguments& args) {
    skein::spmd::etcd_options how;
    std::string_view rest = args.endpoint;
    while (!rest.empty()) {
        const auto comma = rest.find(',');
        const std::string one(rest.substr(0, comma));
        const bool has_scheme = one.find("://") != std::string::npos;
        const bool is_safe = !args.etcd.ca.empty() || !args.etcd.cert.empty();
        how.endpoints.push_back(has_scheme ? one : (is_safe ? "https://" : "http://") + one);
        rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    }
    if (!args.etcd.prefix.empty()) how.prefix = args.etcd.prefix;
    how.job = args.job;
    how.user = args.etcd.user;
    how.password = args.etcd.password;
    how.ca = args.etcd.ca;
    how.cert = args.etcd.cert;
    how.key = args.etcd.key;
    how.lease_ttl = std::chrono::seconds(3);
    return [how] { return std::make_unique<skein::spmd::etcd_register>(how); };
}

} // namespace skein_program
