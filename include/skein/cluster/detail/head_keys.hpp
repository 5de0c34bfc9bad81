// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which keys open something at a head, and what is whose: a view of a head's state, made when it is
// asked.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/rights_gate.hpp>
#include <skein/cluster/head.hpp>
#include <skein/core/bytes.hpp>
#include <skein/net/options.hpp>
#include <skein/net/requests.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace skein::cluster::detail {

/// A value; the head's state must outlive it, and what it gives.
class head_keys final : public key_facts {
public:
    explicit head_keys(const head::state& of) : of_(&of) {}

    /// How the head takes peers in: with any key that opens something.
    ///   errors  permission_denied: the head has a derived key, and no token
    [[nodiscard]] net::connection_options door() const;
    /// In front of the handlers for one link.
    [[nodiscard]] net::request_service::gate gate(net::key_name key,
                                                  std::uint64_t incarnation) const;
    /// The secret of a space server for a driver, sealed with that one's key.
    [[nodiscard]] byte_buffer space_secret_for(std::uint64_t driver, std::uint64_t server) const;

    /// Ends the links of drivers whose attempt has ended for driver_grace, and that have not: then
    /// their workers end, too. Whoever ends with its job has said goodbye by then.
    static void end_shut_out(head::state& of);

    [[nodiscard]] std::string job_of_attempt(std::uint64_t attempt) const override;
    [[nodiscard]] std::string fate_of_attempt(std::uint64_t attempt) const override;
    [[nodiscard]] std::optional<net::key_name> key_of(std::uint64_t driver) const override;
    [[nodiscard]] std::string space_of(std::uint64_t driver) const override;
    [[nodiscard]] bool has_begun(const std::string& job, const std::string& space) const override;

private:
    const head::state* of_;
};

} // namespace skein::cluster::detail
