// SPDX-License-Identifier: Apache-2.0
#pragma once
// Members, users, and what etcd's codes mean.

#include <skein/core/known_names.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <array>
#include <chrono>

#include <fmt/format.h>

namespace skein::spmd::detail {

// ---- options ------------------------------------------------------------------------------------

[[nodiscard]] SKEIN_INLINE error bad_etcd_option(std::string_view what) {
    return error(errc::invalid_argument, fmt::format("etcd: {}", printable(what)));
}

/// "host:port" becomes "http://host:port", or https where there are certificates.
[[nodiscard]] SKEIN_INLINE std::string checked_endpoint(std::string endpoint, bool is_secret) {
    if (endpoint.find("://") == std::string::npos)
        endpoint.insert(0, is_secret ? "https://" : "http://");
    const auto host = endpoint.find("://") + 3;
    while (endpoint.size() > host && endpoint.back() == '/') endpoint.pop_back();
    const bool known = endpoint.starts_with("http://") || endpoint.starts_with("https://");
    const auto rest = std::string_view(endpoint).substr(host);
    const auto is_plain = [](char c) { return c > ' ' && c < '\x7f' && c != '"' && c != '\\'; };
    if (!known || rest.empty() || !std::all_of(rest.begin(), rest.end(), is_plain))
        throw bad_etcd_option(fmt::format("the endpoint '{}' is no http://host:port", endpoint));
    if (rest.find('@') != std::string_view::npos) // it would stand in logs
        throw bad_etcd_option("an endpoint holds a user; give user and password instead");
    if (rest.find_first_of("/?#") != std::string_view::npos)
        throw bad_etcd_option(fmt::format("the endpoint '{}' has a path", endpoint));
    return endpoint;
}

SKEIN_INLINE void check_etcd_names(const etcd_options& options) {
    const auto is_name = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_' || c == '.';
    };
    if (options.job.empty() || options.job.size() > 128 ||
        !std::all_of(options.job.begin(), options.job.end(), is_name))
        throw bad_etcd_option(
            fmt::format("the job '{}' is no name of letters, digits, '-', '_', '.'", options.job));
    const auto& prefix = options.prefix;
    const bool plain =
        std::all_of(prefix.begin(), prefix.end(), [](char c) { return c > ' ' && c < '\x7f'; });
    if (prefix.size() < 2 || prefix.size() > 512 || prefix.front() != '/' || !plain)
        throw bad_etcd_option(fmt::format("the prefix '{}' is not '/' and a name", prefix));
}

SKEIN_INLINE etcd_options checked(etcd_options options) {
    using namespace std::chrono_literals;
    if (options.endpoints.empty()) throw bad_etcd_option("no endpoints");
    const bool is_secret = !options.ca.empty() || !options.cert.empty();
    for (auto& endpoint : options.endpoints) endpoint = checked_endpoint(endpoint, is_secret);
    while (options.prefix.size() > 1 && options.prefix.back() == '/') options.prefix.pop_back();
    check_etcd_names(options);
    if (options.user.empty() && !options.password.empty())
        throw bad_etcd_option("a password without a user");
    if (options.cert.empty() != options.key.empty())
        throw bad_etcd_option("cert and key are given both or not at all");
    if (options.lease_ttl < 2s || options.lease_ttl > 1h)
        throw bad_etcd_option("lease_ttl is not between 2 s, etcd's own least, and 1 h");
    if (options.request_timeout < 100ms || options.request_timeout > 1h)
        throw bad_etcd_option("request_timeout is not between 0.1 s and 1 h");
    if (options.watch_renewal < 100ms || options.watch_renewal > 1h)
        throw bad_etcd_option("watch_renewal is not between 0.1 s and 1 h");
    return options;
}

// ---- a call -------------------------------------------------------------------------------------

SKEIN_INLINE etcd_client::etcd_client(etcd_options options,
                                      std::unique_ptr<etcd_transport> transport)
    : options_(std::move(options)), transport_(std::move(transport)) {}

SKEIN_INLINE void etcd_client::leave(std::size_t member) noexcept {
    if (at_ == member) at_ = (at_ + 1) % options_.endpoints.size();
}

SKEIN_INLINE task<void> etcd_client::call(std::string path, std::string body, reader* take,
                                          std::optional<duration> timeout) {
    auto pauses = etcd_backoff();
    std::size_t tried = 0, mistakes = 0, renewed = 0;
    std::optional<error> mistake, trouble;
    for (;;) {
        const auto member = at_;
        auto trying = attempt(member, path, body, take, timeout.value_or(options_.request_timeout));
        auto came = co_await trying;
        using kind = verdict::kind;
        if (came.what == kind::good) {
            note_good(member, path);
            co_return;
        }
        if (came.what == kind::refused) throw *came.why;
        if (came.what == kind::again && ++renewed <= 2) continue; // with a new token
        ++tried;
        if (came.what == kind::mistake) {
            ++mistakes;
            if (!mistake) mistake = came.why;
        } else {
            trouble = came.why;
        }
        leave(member);
        if (tried < options_.endpoints.size()) continue;
        if (mistakes == tried) throw *mistake;
        if (trouble->code() != errc::exhausted) note_trouble(*trouble);
        auto pause = sleep_for(pauses.next(loop::current().random()));
        co_await pause;
        tried = mistakes = renewed = 0;
        mistake.reset();
    }
}

SKEIN_INLINE task<etcd_client::verdict> etcd_client::attempt(std::size_t member,
                                                             const std::string& path,
                                                             const std::string& body, reader* take,
                                                             duration timeout) {
    if (!options_.user.empty() && token_.empty() && has_users_) {
        auto locking = logging_in_.lock();
        const auto held = co_await locking;
        if (token_.empty()) { // nobody else has meanwhile
            auto entering = log_in(member);
            auto entered = co_await entering;
            if (entered.what != verdict::kind::good) co_return entered;
        }
    }
    etcd_request request;
    request.url = options_.endpoints[member] + path;
    request.body = body;
    request.token = token_;
    request.timeout = timeout;
    auto asking = transport_->exchange(request, nullptr);
    auto answer = co_await asking;
    if (answer.trouble == etcd_trouble::none && answer.status == 404 &&
        read_failure(answer.body).code < 0) {
        auto explaining = explain_missing(member, timeout);
        co_return co_await explaining;
    }
    co_return judge(member, answer, take, request.token);
}

SKEIN_INLINE task<etcd_client::verdict> etcd_client::log_in(std::size_t member) {
    // A password is expensive on purpose, and who asks again makes it more so.
    const duration timeout = options_.request_timeout * 5;
    etcd_request request;
    request.url = options_.endpoints[member] + "/v3/auth/authenticate";
    request.body = authenticate_request(options_.user, options_.password);
    request.timeout = timeout;
    auto asking = transport_->exchange(request, nullptr);
    auto answer = co_await asking;
    if (answer.trouble == etcd_trouble::none && answer.status != 200) {
        const auto failure = read_failure(answer.body);
        if (failure.text.find("authentication is not enabled") != std::string::npos) {
            has_users_ = false;
            logging::warn("etcd", "has no users: it is asked without one",
                          {{"endpoint", options_.endpoints[member]}, {"user", options_.user}});
            co_return verdict{};
        }
        if (answer.status == 404 && failure.code < 0) {
            auto explaining = explain_missing(member, timeout);
            co_return co_await explaining;
        }
    }
    reader take = [this](std::string_view text) -> result<etcd_header> {
        auto found = read_token(text);
        if (!found) return found.error();
        token_ = std::move(found->token);
        return found->header;
    };
    co_return judge(member, answer, &take, "");
}

/// 404: it has no such path. What is it, then?
SKEIN_INLINE task<etcd_client::verdict> etcd_client::explain_missing(std::size_t member,
                                                                     duration timeout) {
    etcd_request request;
    request.url = options_.endpoints[member] + "/version";
    request.timeout = timeout;
    auto asking = transport_->exchange(request, nullptr);
    const auto answer = co_await asking;
    const auto version = answer.trouble == etcd_trouble::none && answer.status == 200
                             ? read_version(answer.body)
                             : std::string();
    if (version.empty())
        co_return verdict{verdict::kind::mistake,
                          error(errc::mismatch, "an HTTP server that is no etcd answers there")
                              .with_where(options_.endpoints[member])
                              .with_hint("name the client URL of etcd, port 2379 as a rule")};
    constexpr std::array<std::string_view, 5> too_old{"2.", "3.0.", "3.1.", "3.2.", "3.3."};
    const bool is_old = std::any_of(too_old.begin(), too_old.end(),
                                    [&](auto begin) { return version.starts_with(begin); });
    error why(errc::not_supported,
              is_old ? fmt::format("etcd {} is too old", printable(version))
                     : fmt::format("the JSON gateway of etcd {} is off", printable(version)));
    why.with_where(options_.endpoints[member])
        .with_hint(is_old ? "run etcd 3.4 or newer"
                          : "start etcd with --enable-grpc-gateway=true, or put "
                            "'enable-grpc-gateway: true' into its config file");
    co_return verdict{verdict::kind::mistake, std::move(why)};
}

// ---- what an answer means -----------------------------------------------------------------------

SKEIN_INLINE std::optional<error> etcd_client::other_cluster(std::size_t member,
                                                             std::uint64_t cluster) {
    if (!cluster_) cluster_ = cluster;
    if (*cluster_ == cluster) return std::nullopt;
    return error(errc::mismatch,
                 fmt::format("etcd there is of the cluster {:x}, before it was {:x}", cluster,
                             *cluster_))
        .with_where(options_.endpoints[member])
        .with_hint("endpoints are members of one cluster, and a job ends with it: after another "
                   "was set up or restored in its place, start the job again and resume its run, "
                   "which goes on from its last checkpoint");
}

SKEIN_INLINE etcd_client::verdict etcd_client::judge(std::size_t member, const etcd_answer& answer,
                                                     reader* take, const std::string& token) {
    using kind = verdict::kind;
    const auto& where = options_.endpoints[member];
    if (answer.trouble == etcd_trouble::away) {
        auto why = error(errc::refused, "no answer").with_where(where).with_cause(answer.why);
        const bool is_plain = where.starts_with("http://");
        const auto sign = is_plain ? "Empty reply" : "SSL_connect"; // or it is being stopped
        if (answer.why.find(sign) != std::string::npos)
            why.with_hint(
                is_plain ? "if this etcd has certificates, its endpoint begins with https://"
                         : "if this etcd has no certificates, its endpoint begins with http://");
        return {kind::away, std::move(why)};
    }
    if (answer.trouble == etcd_trouble::mistake)
        return {kind::mistake,
                error(errc::mismatch, "no connection can be made")
                    .with_where(where)
                    .with_cause(answer.why)
                    .with_hint("check the endpoint's scheme and the options ca, cert and key")};
    if (answer.status == 200) {
        const auto header = (*take)(answer.body);
        if (header) {
            if (auto other = other_cluster(member, header->cluster))
                return {kind::mistake, std::move(other)};
            return {};
        }
        // A server that has answered well before is etcd all the same, behind something that is not.
        return {cluster_ ? kind::away : kind::mistake,
                error(errc::mismatch, "an answer that is none of etcd's gateway")
                    .with_where(where)
                    .with_cause(header.error().text())
                    .with_hint("name the client URL of etcd, port 2379 as a rule")};
    }
    const auto failure = read_failure(answer.body);
    if (failure.code > 0) return judge_failure(member, failure, token);
    error why(errc::mismatch, fmt::format("HTTP {}: {}", answer.status, printable(failure.text)));
    why.with_where(where);
    const bool passes = answer.status >= 500 || answer.status == 408 || answer.status == 429;
    if (!passes)
        why.with_hint("name the client URL of etcd, with https:// where it has certificates");
    return {passes ? kind::away : kind::mistake, std::move(why)};
}

SKEIN_INLINE etcd_client::verdict etcd_client::no_auth(const etcd_failure& failure,
                                                       error why) const {
    const bool no_user = failure.text.find("user name is empty") != std::string::npos;
    if (no_user && !options_.user.empty()) return {verdict::kind::again, std::move(why)};
    why.with_hint(!no_user ? "check the options user and password"
                  : !options_.cert.empty()
                      ? "give the options user and password: by its JSON gateway etcd "
                        "takes no user from a client certificate"
                      : "give the options user and password: this etcd has users");
    return {verdict::kind::refused, std::move(why)};
}

SKEIN_INLINE etcd_client::verdict etcd_client::judge_failure(std::size_t member,
                                                             const etcd_failure& failure,
                                                             const std::string& token) {
    using kind = verdict::kind;
    const auto has = [&](std::string_view part) {
        return failure.text.find(part) != std::string::npos;
    };
    const auto said = [&](errc code) {
        return error(code, fmt::format("etcd says: {}", printable(failure.text)))
            .with_where(options_.endpoints[member]);
    };
    if (has("invalid auth token") || has("revision of auth store is old") || failure.code == 16) {
        if (token_ == token) token_.clear();
        has_users_ = true;
        if (options_.user.empty())
            return no_auth({16, "user name is empty"}, said(errc::permission_denied));
        return {kind::again, said(errc::permission_denied)};
    }
    if (has("user name is empty")) {
        token_.clear();
        has_users_ = true; // they were turned on meanwhile
        return no_auth(failure, said(errc::permission_denied));
    }
    if (has("authentication failed")) return no_auth(failure, said(errc::permission_denied));
    if (failure.code == 7)
        return {kind::refused,
                said(errc::permission_denied)
                    .with_hint(fmt::format("grant the user '{}' a role that reads and writes {}/",
                                           options_.user, options_.prefix))};
    if (has("database space exceeded")) {
        auto why = said(errc::exhausted)
                       .with_hint("etcd takes no more until it is compacted and defragmented, and "
                                  "its alarm NOSPACE is disarmed, or its quota is larger");
        note_full(why);
        return {kind::away, std::move(why)};
    }
    if (has("request is too large")) return {kind::refused, said(errc::too_large)};
    if (has("lease already exists")) return {kind::refused, said(errc::already_exists)};
    switch (failure.code) {
    case 3: return {kind::refused, said(errc::invalid_argument)};
    case 5: return {kind::refused, said(errc::not_found)};
    case 6: return {kind::refused, said(errc::already_exists)};
    case 12: return {kind::mistake, said(errc::not_supported).with_hint("run etcd 3.4 or newer")};
    default: return {kind::away, said(errc::refused)}; // no leader, too busy, being stopped
    }
}

// ---- what is said about it ----------------------------------------------------------------------

SKEIN_INLINE void etcd_client::note_good(std::size_t member, std::string_view path) {
    if (path == "/v3/kv/txn" && std::exchange(said_full_, false))
        logging::info("etcd", "has space again", {{"endpoint", options_.endpoints[member]}});
    if (!away_since_) return;
    const auto length = between(*std::exchange(away_since_, {}), loop::current().exact_now());
    logging::info("etcd", "answers again",
                  {{"endpoint", options_.endpoints[member]}, {"after", length}});
}

SKEIN_INLINE void etcd_client::note_trouble(const error& why) {
    if (away_since_) return;
    away_since_ = loop::current().exact_now();
    logging::warn("etcd", "does not answer; what needs it waits until it does, a training goes on",
                  {{"job", options_.job},
                   {"endpoints", joined(options_.endpoints, ",")},
                   {"why", why.what()}});
}

SKEIN_INLINE void etcd_client::note_full(const error& why) {
    if (std::exchange(said_full_, true)) return;
    logging::error("etcd", "is full", {{"job", options_.job}, {"why", why.what()}});
}

// ---- watches ------------------------------------------------------------------------------------

SKEIN_INLINE task<bool> etcd_client::watch(std::string body, etcd_line* on_line, duration at_most) {
    const auto member = at_;
    bool is_watch = false;
    etcd_line line = [&is_watch, on_line](std::string_view text) {
        is_watch = true;
        return (*on_line)(text);
    };
    etcd_request request;
    request.url = options_.endpoints[member] + "/v3/watch";
    request.body = std::move(body);
    request.token = token_;
    request.timeout = at_most;
    request.needs_leader = true;
    const auto begin = loop::current().exact_now();
    auto watching = transport_->exchange(request, &line);
    const auto answer = co_await watching;
    const bool was_whole = answer.trouble == etcd_trouble::away &&
                           between(begin, loop::current().exact_now()) >= at_most;
    if (was_whole) co_return true;
    if (answer.trouble != etcd_trouble::none || answer.status != 200) {
        leave(member);
        co_return false;
    }
    co_return is_watch;
}

SKEIN_INLINE task<void> etcd_client::try_once(std::string path, std::string body,
                                              duration timeout) {
    etcd_request request;
    request.url = options_.endpoints[at_] + path;
    request.body = std::move(body);
    request.token = token_;
    request.timeout = timeout;
    auto asking = transport_->exchange(request, nullptr);
    (void)co_await asking;
}

} // namespace skein::spmd::detail
