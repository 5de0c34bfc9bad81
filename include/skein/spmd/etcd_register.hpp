// SPDX-License-Identifier: Apache-2.0
#pragma once
// The register of an elastic job's views in etcd (3.4 or newer), by its JSON gateway over HTTP.
//
//     spmd::etcd_register views({.endpoints = {"http://a:2379", "http://b:2379"}, .job = "bert"});
//     auto newest = views.read();
//     auto now = co_await newest;
//
// Two keys: <prefix>/<job>/view holds the newest view, <prefix>/<job>/coordinator who proposes
// views, under a lease. Link skein::etcd, which brings libcurl; header-only,
// skein::etcd_header_only. docs/etcd.md says what etcd has to be set to, and what happens while it
// is away.

#if !__has_include(<curl/curl.h>)
#error "skein/spmd/etcd_register.hpp needs libcurl: install the package libcurl4-openssl-dev"
#endif

#include <skein/core/time.hpp>
#include <skein/spmd/view_register.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace skein::spmd {

namespace detail {
class etcd_transport;
class etcd_keys;
} // namespace detail

/// Where etcd is, and what this job is called there.
struct etcd_options {
    /// "http://host:port" or "https://host:port" of members of one cluster: they stand for each
    /// other. At least one.
    std::vector<std::string> endpoints;
    std::string prefix = "/skein"; ///< of all keys; begins with a slash
    std::string job;               ///< the job's name: letters, digits, '-', '_', '.'
    std::string user, password;    ///< empty: etcd is asked without a user
    std::string ca;        ///< PEM file of who signs etcd's certificates; empty: the system's
    std::string cert, key; ///< PEM files of this client's own certificate; both or none
    time_span lease_ttl = std::chrono::seconds(5); ///< of the coordinator's place; whole seconds, 2
                                                   ///< at least
    time_span request_timeout = std::chrono::seconds(3); ///< of one try at one member
    /// A watch that heard nothing for so long reads the key and begins anew: it may wait at a member
    /// that is cut off.
    time_span watch_renewal = std::chrono::seconds(5);
};

/// A view_register in etcd. Lives on the loop that it is made on; sockets are a thread's of its own,
/// so calls can be cancelled at any time. Which endpoint does not answer, and that one does again,
/// is logged once each ("etcd").
///   errors  those of view_register, of calls: permission_denied (user, password, role, or none
///           where etcd wants one); not_supported (etcd's JSON gateway is off, or etcd is older than
///           3.4); mismatch (a certificate that the CA did not sign, a server that is no etcd, a
///           member of another cluster, a key that holds something else); too_large: a view of more
///           than 1 MiB. An endpoint's mistake is an error when every endpoint makes one; while one
///           of them is only away, calls wait for it
class etcd_register final : public view_register {
public:
    ///   errors  invalid_argument: an option is no such thing; not_found: a file of options is not
    ///           there
    explicit etcd_register(etcd_options options);
    /// Over another way to etcd: for tests.
    etcd_register(etcd_options options, std::unique_ptr<detail::etcd_transport> transport);
    /// Gives the coordinator's place back, if it is held, by one try that nobody waits for but the
    /// loop's end. No call may run any more.
    ~etcd_register() override;

    [[nodiscard]] task<view> read() override;
    ///   errors  invalid_argument: next.generation is not generation + 1
    [[nodiscard]] task<swap_result> compare_and_swap(std::uint64_t generation, view next) override;
    [[nodiscard]] task<view> watch(std::uint64_t after) override;
    /// A place of the same id that is there already, of a supervisor that was started again, is
    /// taken over.
    [[nodiscard]] task<coordinator_place> claim(coordinator_place me) override;
    [[nodiscard]] task<coordinator_place> watch_coordinator(coordinator_place known) override;
    /// Ends after the lease's length at the latest: it ends by itself then.
    [[nodiscard]] task<void> resign() override;

private:
    std::shared_ptr<detail::etcd_keys> keys_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#if __has_include(<curl/curl.h>) // otherwise the line above is the only one
#include <skein/spmd/detail/etcd_register.ipp>
#endif
#endif
