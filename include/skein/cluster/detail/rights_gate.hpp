// SPDX-License-Identifier: Apache-2.0
#pragma once
// What stands in front of a head's handlers: whether the key of a link may ask for that, by the
// table in cluster/rights.hpp. Where a key reaches its own job or namespace alone, the message is
// read here, once more; what names no job is about the own one.
//
//     struct head : key_facts { ... };                  // which attempts run, which drivers there are
//     rights_gate gate(facts, link->peer().key, link->peer_incarnation());
//     service->set_gate([gate](std::uint16_t number, byte_span body) {
//         return gate.check(number, body);
//     });
//     options.admits = [&](const net::key_name& key) { return why_shut_out(facts, key); };

#include <skein/core/config.hpp>
#include <skein/cluster/detail/tool_messages.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/net/key_name.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace skein::cluster::detail {

/// What a gate asks of the head that has it.
class key_facts {
public:
    /// The job of an attempt that has begun and has not ended; "": of none.
    [[nodiscard]] virtual std::string job_of_attempt(std::uint64_t attempt) const = 0;
    /// "attempt 2 of job train has ended", of one that job_of_attempt() does not know.
    [[nodiscard]] virtual std::string fate_of_attempt(std::uint64_t attempt) const = 0;
    /// The key with which a driver has come, or is to come; nothing: there is no such driver.
    [[nodiscard]] virtual std::optional<net::key_name> key_of(std::uint64_t driver) const = 0;
    /// The namespace of a space server; "": this head has not heard of it.
    [[nodiscard]] virtual std::string space_of(std::uint64_t driver) const = 0;
    /// Whether a driver of that job has begun the namespace.
    [[nodiscard]] virtual bool has_begun(const std::string& job,
                                         const std::string& space) const = 0;

protected:
    key_facts() = default;
    key_facts(const key_facts&) = default;
    key_facts& operator=(const key_facts&) = default;
    ~key_facts() = default;
};

/// Of one link.
class rights_gate {
public:
    /// `facts` must outlive it. `incarnation`: of the process at the link's other end.
    rights_gate(const key_facts& facts, net::key_name key, std::uint64_t incarnation)
        : facts_(&facts), key_(key), incarnation_(incarnation) {}

    /// Nothing: the message may be handled as it is; else the one to handle instead.
    ///   errors  permission_denied: what was asked, with which key, what that may do, what next;
    ///           malformed
    [[nodiscard]] std::optional<byte_buffer> check(std::uint16_t number, byte_span body) const;

private:
    const key_facts* facts_;
    net::key_name key_;
    std::uint64_t incarnation_;
};

/// What is left of a status for who may see one job; an empty `job` may see all.
void keep_programs_of(cluster_status& all, const std::string& job);

/// Why a key opens nothing at all; nothing: it opens something.
[[nodiscard]] std::optional<error> why_shut_out(const key_facts& facts, const net::key_name& key);

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/rights_gate.ipp>
#endif
