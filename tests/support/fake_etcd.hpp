// SPDX-License-Identifier: Apache-2.0
#pragma once
// An etcd in memory behind its JSON gateway, as a transport: keys, revisions, leases, watches and
// users, in a loop's time. What comes between it and who asks is a script.
//
//     auto etcd = std::make_shared<fake_etcd>();
//     etcd->script.push_back(fake_etcd::lost_answer());     // of the next request but watches
//     etcd_register views(options, std::make_unique<fake_etcd_transport>(etcd));

#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/spmd/detail/etcd_messages.hpp>
#include <skein/spmd/detail/etcd_transport.hpp>
#include <skein/wire/json.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace skein::test {

namespace se = skein::spmd::detail;

struct fake_etcd {
    using serve = std::function<se::etcd_answer(const se::etcd_request&)>;
    using step = std::function<se::etcd_answer(const se::etcd_request&, const serve&)>;

    struct entry {
        std::string value;
        std::int64_t mod = 0, lease = 0;
    };
    struct change {
        std::int64_t revision = 0;
        std::string key;
        std::optional<entry> now;
    };
    struct lease {
        std::int64_t ttl = 0;
        time_point ends;
    };

    std::uint64_t cluster = 0xc1;
    std::int64_t revision = 1, compacted = 0;
    std::map<std::string, entry> keys;
    std::vector<change> changes;
    std::map<std::int64_t, lease> leases;
    std::map<std::string, std::string> users; ///< none: it has no users
    std::set<std::string> tokens;
    int watches = 0;                ///< that are open
    bool is_full = false;           ///< NOSPACE
    bool ends_watches = false;      ///< at once, as a member without a leader
    bool hides_changes = false;     ///< from watches, as a member that is cut off
    std::vector<std::string> asked; ///< paths, watches too
    std::deque<step> script;

    // ---- steps of a script
    static se::etcd_answer away(std::string why) {
        return {se::etcd_trouble::away, std::move(why), 0, {}};
    }
    /// Nothing arrives there.
    static step refused() {
        return [](const auto&, const auto&) { return away("Connection refused"); };
    }
    /// It is done, and nobody hears of it.
    static step lost_answer() {
        return [](const auto& request, const auto& serve) {
            (void)serve(request);
            return away("Empty reply from server");
        };
    }
    /// It is done, and half of the answer arrives, with no error of the connection.
    static step half_answer() {
        return [](const auto& request, const auto& serve) {
            auto answer = serve(request);
            answer.body.resize(answer.body.size() / 2);
            return answer;
        };
    }
    static step says(int status, std::string body) {
        return [status, body = std::move(body)](const auto&, const auto&) {
            return se::etcd_answer{se::etcd_trouble::none, {}, status, body};
        };
    }
    static step first(std::function<void()> that) {
        return [that = std::move(that)](const auto& request, const auto& serve) {
            that();
            return serve(request);
        };
    }
    static step fine() {
        return [](const auto& request, const auto& serve) { return serve(request); };
    }

    // ---- what it does
    void put(const std::string& key, std::optional<std::string> value, std::int64_t under = 0) {
        ++revision;
        if (value) {
            keys[key] = {*value, revision, under};
            changes.push_back({revision, key, keys[key]});
        } else {
            keys.erase(key);
            changes.push_back({revision, key, std::nullopt});
        }
    }
    void end_lease(std::int64_t id) {
        leases.erase(id);
        std::vector<std::string> gone;
        for (const auto& [key, at] : keys)
            if (at.lease == id) gone.push_back(key);
        for (const auto& key : gone) put(key, std::nullopt);
    }
    void expire() {
        std::vector<std::int64_t> over;
        for (const auto& [id, l] : leases)
            if (l.ends <= loop::current().now()) over.push_back(id);
        for (const auto id : over) end_lease(id);
    }

    json header() const {
        return {{"cluster_id", fmt::format("{}", cluster)},
                {"revision", fmt::format("{}", revision)}};
    }
    static json kv_of(const std::string& key, const entry& at) {
        json kv{{"key", se::to_base64(key)},
                {"mod_revision", fmt::format("{}", at.mod)},
                {"value", se::to_base64(at.value)}};
        if (at.lease != 0) kv["lease"] = fmt::format("{}", at.lease);
        return kv;
    }
    json range(const std::string& key) const {
        json out{{"header", header()}};
        if (const auto at = keys.find(key); at != keys.end())
            out["kvs"] = json::array({kv_of(key, at->second)});
        return out;
    }
    static se::etcd_answer good(const json& body) {
        return {se::etcd_trouble::none, {}, 200, dump_json(body)};
    }
    static se::etcd_answer bad(int status, int code, const std::string& text) {
        return {se::etcd_trouble::none,
                {},
                status,
                dump_json(json{{"error", text}, {"message", text}, {"code", code}})};
    }
    static std::string key_in(const json& request) {
        return se::from_base64(request.at("key").get<std::string>()).value();
    }
    static std::int64_t number(const json& in, const char* name) {
        return in.contains(name) ? std::stoll(in.at(name).get<std::string>()) : 0;
    }

    se::etcd_answer swap(const json& request) {
        const auto& compare = request.at("compare").at(0);
        const auto& put_request = request.at("success").at(0).at("request_put");
        const auto key = key_in(compare);
        const auto at = keys.find(key);
        if (is_full) return bad(429, 8, "etcdserver: mvcc: database space exceeded");
        if ((at == keys.end() ? 0 : at->second.mod) != number(compare, "mod_revision")) {
            return good({{"header", header()},
                         {"responses", json::array({json{{"response_range", range(key)}}})}});
        }
        const auto under = number(put_request, "lease");
        if (under != 0 && !leases.contains(under))
            return bad(404, 5, "etcdserver: requested lease not found");
        put(key, se::from_base64(put_request.at("value").get<std::string>()).value(), under);
        return good({{"header", header()}, {"succeeded", true}});
    }
    se::etcd_answer of_lease(const std::string& path, const json& request) {
        const auto id = number(request, "ID");
        const auto at = leases.find(id);
        if (path == "/v3/lease/grant") {
            if (at != leases.end()) return bad(412, 9, "etcdserver: lease already exists");
            const auto ttl = number(request, "TTL");
            leases[id] = {ttl, loop::current().now() + std::chrono::seconds(ttl)};
            return good({{"header", header()},
                         {"ID", fmt::format("{}", id)},
                         {"TTL", fmt::format("{}", ttl)}});
        }
        if (path == "/v3/lease/revoke") {
            if (at == leases.end()) return bad(404, 5, "etcdserver: requested lease not found");
            end_lease(id);
            return good({{"header", header()}});
        }
        json kept{{"header", header()}, {"ID", fmt::format("{}", id)}};
        if (at != leases.end()) {
            at->second.ends = loop::current().now() + std::chrono::seconds(at->second.ttl);
            kept["TTL"] = fmt::format("{}", at->second.ttl);
        }
        return good({{"result", kept}});
    }
    se::etcd_answer answer(const se::etcd_request& request) {
        expire();
        const auto path = path_of(request);
        if (path == "/version") return good({{"etcdserver", "3.4.23"}});
        const auto body = parse_json(request.body).value();
        if (path == "/v3/auth/authenticate") {
            const auto user = users.find(body.at("name").get<std::string>());
            if (users.empty()) return bad(412, 9, "etcdserver: authentication is not enabled");
            if (user == users.end() || user->second != body.at("password").get<std::string>())
                return bad(400, 3,
                           "etcdserver: authentication failed, invalid user ID or password");
            const auto token = fmt::format("token.{}", tokens.size() + 1);
            tokens.insert(token);
            return good({{"header", header()}, {"token", token}});
        }
        if (!users.empty() && request.token.empty())
            return bad(400, 3, "etcdserver: user name is empty");
        if (!users.empty() && !tokens.contains(request.token))
            return bad(401, 16, "etcdserver: invalid auth token");
        if (path == "/v3/kv/range") return good(range(key_in(body)));
        if (path == "/v3/kv/txn") return swap(body);
        return of_lease(path, body);
    }
    static std::string path_of(const se::etcd_request& request) {
        return request.url.substr(request.url.find('/', 8));
    }
};

class fake_etcd_transport final : public se::etcd_transport {
public:
    explicit fake_etcd_transport(std::shared_ptr<fake_etcd> etcd) : etcd_(std::move(etcd)) {}

    task<se::etcd_answer> exchange(const se::etcd_request& request,
                                   se::etcd_line* on_line) override {
        using namespace std::chrono_literals;
        etcd_->asked.push_back(fake_etcd::path_of(request));
        auto travel = sleep_for(1ms);
        co_await travel;
        if (on_line != nullptr) {
            auto watching = watch(request, on_line);
            co_return co_await watching;
        }
        fake_etcd::step step = fake_etcd::fine();
        if (!etcd_->script.empty()) {
            step = std::move(etcd_->script.front());
            etcd_->script.pop_front();
        }
        co_return step(request, [this](const auto& asked) { return etcd_->answer(asked); });
    }

private:
    struct open_watch {
        explicit open_watch(int& number) : number_(++number) {}
        open_watch(const open_watch&) = delete;
        open_watch& operator=(const open_watch&) = delete;
        ~open_watch() { --number_; }
        int& number_;
    };

    task<se::etcd_answer> watch(const se::etcd_request& request, se::etcd_line* on_line) {
        using namespace std::chrono_literals;
        const open_watch open(etcd_->watches);
        const auto body = parse_json(request.body).value().at("create_request");
        auto from = fake_etcd::number(body, "start_revision");
        const auto key = fake_etcd::key_in(body);
        const auto end = loop::current().now() + request.timeout;
        const auto line = [&](json result) {
            result["header"] = etcd_->header();
            return (*on_line)(dump_json(json{{"result", std::move(result)}}));
        };
        if (!etcd_->users.empty() && !etcd_->tokens.contains(request.token)) {
            // where a token has expired, too: it cannot be told from a role that is missing
            (void)line({{"canceled", true}, {"cancel_reason", "etcdserver: permission denied"}});
            co_return se::etcd_answer{se::etcd_trouble::none, {}, 200, {}};
        }
        if (!line({{"created", true}})) co_return se::etcd_answer{};
        while (loop::current().now() < end) {
            etcd_->expire();
            if (etcd_->ends_watches) {
                (void)line({{"canceled", true}, {"cancel_reason", "etcdserver: no leader"}});
                break;
            }
            if (from <= etcd_->compacted) {
                (void)line({{"canceled", true},
                            {"compact_revision", fmt::format("{}", etcd_->compacted)}});
                break;
            }
            if (etcd_->hides_changes) {
                auto a_moment = sleep_for(10ms);
                co_await a_moment;
                continue;
            }
            json events = json::array();
            for (const auto& change : etcd_->changes) {
                if (change.revision < from || change.key != key) continue;
                if (change.now)
                    events.push_back(json{{"kv", fake_etcd::kv_of(key, *change.now)}});
                else
                    events.push_back(
                        json{{"type", "DELETE"}, {"kv", json{{"key", se::to_base64(key)}}}});
            }
            from = etcd_->revision + 1;
            if (!events.empty() && !line({{"events", std::move(events)}})) break;
            auto a_moment = sleep_for(10ms);
            co_await a_moment;
        }
        if (loop::current().now() >= end) co_return fake_etcd::away("timed out");
        co_return se::etcd_answer{se::etcd_trouble::none, {}, 200, {}};
    }

    std::shared_ptr<fake_etcd> etcd_;
};

} // namespace skein::test
