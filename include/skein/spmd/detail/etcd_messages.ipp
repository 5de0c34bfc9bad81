// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON of etcd's gateway, and of the values that its keys hold.

#include <skein/wire/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd::detail {

SKEIN_INLINE std::string to_base64(std::string_view bytes) {
    constexpr std::string_view digits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t group = 0;
        const std::size_t have = std::min<std::size_t>(3, bytes.size() - i);
        for (std::size_t j = 0; j < 3; ++j)
            group = group << 8 | (j < have ? static_cast<unsigned char>(bytes[i + j]) : 0U);
        for (std::size_t j = 0; j < 4; ++j)
            out += j <= have ? digits[group >> (18 - 6 * j) & 63U] : '=';
    }
    return out;
}

[[nodiscard]] SKEIN_INLINE int base64_digit(char c) noexcept {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

SKEIN_INLINE result<std::string> from_base64(std::string_view text) {
    const auto refused = [] { return error(errc::malformed, "not base64"); };
    if (text.size() % 4 != 0) return refused();
    std::string out;
    out.reserve(text.size() / 4 * 3);
    for (std::size_t i = 0; i < text.size(); i += 4) {
        const bool last = i + 4 == text.size();
        std::size_t have = 4;
        if (last) have = text[i + 3] != '=' ? 4 : text[i + 2] != '=' ? 3 : 2;
        std::uint32_t group = 0;
        for (std::size_t j = 0; j < 4; ++j) {
            const int digit = j < have ? base64_digit(text[i + j]) : 0;
            if (digit < 0) return refused();
            group = group << 6 | static_cast<std::uint32_t>(digit);
        }
        if ((group & ((1U << (8 * (4 - have))) - 1)) != 0) return refused(); // bits of no byte
        for (std::size_t j = 0; j + 1 < have; ++j)
            out += static_cast<char>(group >> (16 - 8 * j) & 0xffU);
    }
    return out;
}

// ---- requests -----------------------------------------------------------------------------------

SKEIN_INLINE std::string range_request(std::string_view key) {
    return dump_json(json{{"key", to_base64(key)}});
}

SKEIN_INLINE std::string swap_request(std::string_view key, std::int64_t mod_revision,
                                      std::string_view value, std::int64_t lease) {
    const std::string name = to_base64(key);
    json put{{"key", name}, {"value", to_base64(value)}};
    if (lease != 0) put["lease"] = fmt::format("{}", lease);
    json compare{{"result", "EQUAL"},
                 {"target", "MOD"},
                 {"key", name},
                 {"mod_revision", fmt::format("{}", mod_revision)}};
    json request;
    request["compare"] = json::array({std::move(compare)});
    request["success"] = json::array({json{{"request_put", std::move(put)}}});
    request["failure"] = json::array({json{{"request_range", json{{"key", name}}}}});
    return dump_json(request);
}

SKEIN_INLINE std::string watch_request(std::string_view key, std::int64_t from_revision) {
    json create{{"key", to_base64(key)}, {"start_revision", fmt::format("{}", from_revision)}};
    return dump_json(json{{"create_request", std::move(create)}});
}

SKEIN_INLINE std::string grant_request(std::int64_t lease, std::int64_t ttl) {
    return dump_json(json{{"ID", fmt::format("{}", lease)}, {"TTL", fmt::format("{}", ttl)}});
}

SKEIN_INLINE std::string lease_request(std::int64_t lease) {
    return dump_json(json{{"ID", fmt::format("{}", lease)}});
}

SKEIN_INLINE std::string authenticate_request(std::string_view user, std::string_view password) {
    return dump_json(json{{"name", std::string(user)}, {"password", std::string(password)}});
}

// ---- answers ------------------------------------------------------------------------------------

/// A whole number, as text or as a number; absent is zero.
template <class T>
[[nodiscard]] result<T> etcd_number(const json& object, const char* name) {
    const auto at = object.find(name);
    if (at == object.end()) return T(0);
    if (at->is_number_integer()) {
        if (at->is_number_unsigned()) {
            const auto number = at->get<std::uint64_t>();
            if (number <= static_cast<std::uint64_t>(std::numeric_limits<T>::max()))
                return static_cast<T>(number);
        } else if (std::is_signed_v<T>) {
            return static_cast<T>(at->get<std::int64_t>());
        }
    } else if (at->is_string()) {
        const auto& text = at->get_ref<const std::string&>();
        T number{};
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
        if (failure == std::errc() && end == text.data() + text.size()) return number;
    }
    return error(errc::malformed, fmt::format("etcd's '{}' is not a whole number", name));
}

/// A member that is an object; null where there is none.
[[nodiscard]] SKEIN_INLINE result<const json*> etcd_object(const json& in, const char* name) {
    const auto at = in.find(name);
    if (at == in.end()) return static_cast<const json*>(nullptr);
    if (!at->is_object())
        return error(errc::malformed, fmt::format("etcd's '{}' is not an object", name));
    return static_cast<const json*>(&*at);
}

/// A member that is an array of objects; empty where there is none.
[[nodiscard]] SKEIN_INLINE result<std::vector<const json*>> etcd_objects(const json& in,
                                                                         const char* name) {
    std::vector<const json*> found;
    const auto at = in.find(name);
    if (at == in.end()) return found;
    const auto refused = [&] {
        return error(errc::malformed, fmt::format("etcd's '{}' is not an array of objects", name));
    };
    if (!at->is_array()) return refused();
    for (const auto& item : *at) {
        if (!item.is_object()) return refused();
        found.push_back(&item);
    }
    return found;
}

[[nodiscard]] SKEIN_INLINE result<etcd_header> read_header(const json& answer) {
    const auto header = etcd_object(answer, "header");
    if (!header) return header.error();
    if (*header == nullptr) return error(errc::malformed, "an answer without etcd's header");
    const auto cluster = etcd_number<std::uint64_t>(**header, "cluster_id");
    if (!cluster) return cluster.error();
    const auto revision = etcd_number<std::int64_t>(**header, "revision");
    if (!revision) return revision.error();
    return etcd_header{*cluster, *revision};
}

[[nodiscard]] SKEIN_INLINE result<etcd_value> read_value(const json& kv) {
    etcd_value out;
    const auto mod = etcd_number<std::int64_t>(kv, "mod_revision");
    if (!mod) return mod.error();
    const auto lease = etcd_number<std::int64_t>(kv, "lease");
    if (!lease) return lease.error();
    if (const auto at = kv.find("value"); at != kv.end()) {
        if (!at->is_string()) return error(errc::malformed, "etcd's 'value' is not text");
        auto value = from_base64(at->get_ref<const std::string&>());
        if (!value) return value.error();
        out.value = std::move(*value);
    }
    out.mod_revision = *mod;
    out.lease = *lease;
    return out;
}

/// The first of kvs; nothing there: no such key.
[[nodiscard]] SKEIN_INLINE result<etcd_value> read_first(const json& range) {
    const auto kvs = etcd_objects(range, "kvs");
    if (!kvs) return kvs.error();
    if (kvs->empty()) return etcd_value{};
    auto value = read_value(*kvs->front());
    if (value && value->mod_revision <= 0)
        return error(errc::malformed, "etcd's key has no mod_revision");
    return value;
}

[[nodiscard]] SKEIN_INLINE result<json> read_object(std::string_view body) {
    auto parsed = parse_json(body, {.max_bytes = etcd_answer_limit, .max_depth = 16});
    if (parsed && !parsed->is_object())
        return error(errc::malformed, "an answer that is no JSON object");
    return parsed;
}

/// The object with its header, from {...} or {"result": {...}}.
struct etcd_body {
    json all;
    const json* inside = nullptr;
    etcd_header header;
};
[[nodiscard]] SKEIN_INLINE result<std::unique_ptr<etcd_body>> read_body(std::string_view text,
                                                                        bool is_stream = false) {
    auto parsed = read_object(text);
    if (!parsed) return parsed.error();
    auto out = std::make_unique<etcd_body>();
    out->all = std::move(*parsed);
    out->inside = &out->all;
    if (is_stream) {
        const auto result = etcd_object(out->all, "result");
        if (!result) return result.error();
        if (*result == nullptr) return error(errc::malformed, "a line without etcd's result");
        out->inside = *result;
    }
    const auto header = read_header(*out->inside);
    if (!header) return header.error();
    out->header = *header;
    return out;
}

SKEIN_INLINE result<etcd_range> read_range(std::string_view body) {
    const auto answer = read_body(body);
    if (!answer) return answer.error();
    auto value = read_first(*(*answer)->inside);
    if (!value) return value.error();
    return etcd_range{(*answer)->header, std::move(*value)};
}

SKEIN_INLINE result<etcd_swap> read_swap(std::string_view body) {
    const auto answer = read_body(body);
    if (!answer) return answer.error();
    const json& said = *(*answer)->inside;
    etcd_swap out{(*answer)->header, false, {}};
    if (const auto at = said.find("succeeded"); at != said.end()) {
        if (!at->is_boolean()) return error(errc::malformed, "etcd's 'succeeded' is no boolean");
        out.made = at->get<bool>();
    }
    if (out.made) return out;
    const auto responses = etcd_objects(said, "responses");
    if (!responses) return responses.error();
    if (responses->empty()) return error(errc::malformed, "etcd's swap does not say what is there");
    const auto range = etcd_object(*responses->front(), "response_range");
    if (!range) return range.error();
    if (*range == nullptr) return error(errc::malformed, "etcd's swap does not say what is there");
    auto value = read_first(**range);
    if (!value) return value.error();
    out.now = std::move(*value);
    return out;
}

[[nodiscard]] SKEIN_INLINE result<etcd_lease> read_lease(std::string_view body, bool is_stream) {
    const auto answer = read_body(body, is_stream);
    if (!answer) return answer.error();
    const auto id = etcd_number<std::int64_t>(*(*answer)->inside, "ID");
    if (!id) return id.error();
    const auto ttl = etcd_number<std::int64_t>(*(*answer)->inside, "TTL");
    if (!ttl) return ttl.error();
    constexpr std::int64_t most = 9'000'000'000; // etcd's own limit
    if (*ttl > most) return error(errc::malformed, "etcd's 'TTL' is longer than etcd grants");
    return etcd_lease{(*answer)->header, *id, std::max<std::int64_t>(*ttl, 0)};
}

SKEIN_INLINE result<etcd_lease> read_grant(std::string_view body) {
    auto lease = read_lease(body, false);
    if (lease && (lease->id == 0 || lease->ttl == 0))
        return error(errc::malformed, "etcd's lease has no ID or no TTL");
    return lease;
}

SKEIN_INLINE result<etcd_lease> read_keep_alive(std::string_view body) {
    return read_lease(body.substr(0, body.find('\n')), true);
}

SKEIN_INLINE result<etcd_token> read_token(std::string_view body) {
    const auto answer = read_body(body);
    if (!answer) return answer.error();
    auto token = json_string(*(*answer)->inside, "token");
    if (!token) return token.error();
    const auto is_plain = [](char c) { return c > ' ' && c < '\x7f'; };
    if (token->empty() || !std::all_of(token->begin(), token->end(), is_plain))
        return error(errc::malformed, "etcd's token is no word");
    return etcd_token{(*answer)->header, std::move(*token)};
}

SKEIN_INLINE result<etcd_done> read_done(std::string_view body) {
    const auto answer = read_body(body);
    if (!answer) return answer.error();
    return etcd_done{(*answer)->header};
}

/// Of a stream's {"error": {...}}.
[[nodiscard]] SKEIN_INLINE std::string stream_error(const json& said) {
    for (const char* name : {"message", "error"}) {
        const auto text = json_string(said, name);
        if (text) return *text;
    }
    return "an error without a text";
}

SKEIN_INLINE result<etcd_watch_line> read_watch_line(std::string_view line) {
    auto parsed = read_object(line);
    if (!parsed) return parsed.error();
    if (const auto failed = parsed->find("error"); failed != parsed->end()) {
        etcd_watch_line out;
        out.ended = true;
        out.why = stream_error(failed->is_object() ? *failed : *parsed);
        return out;
    }
    const auto result = etcd_object(*parsed, "result");
    if (!result) return result.error();
    if (*result == nullptr) return error(errc::malformed, "a line without etcd's result");
    const json& said = **result;
    const auto header = read_header(said);
    if (!header) return header.error();
    etcd_watch_line out{*header,
                        said.value("created", json()) == true,
                        said.value("canceled", json()) == true,
                        {},
                        {}};
    const auto compacted = etcd_number<std::int64_t>(said, "compact_revision");
    if (!compacted) return compacted.error();
    if (const auto why = json_string(said, "cancel_reason"); why) out.why = *why;
    if (*compacted > 0) {
        out.ended = true;
        out.why = "compacted";
    }
    const auto events = etcd_objects(said, "events");
    if (!events) return events.error();
    for (const auto* event : *events) {
        const auto kv = etcd_object(*event, "kv");
        if (!kv) return kv.error();
        if (*kv == nullptr) return error(errc::malformed, "etcd's event has no key");
        const auto type = event->value("type", json());
        if (type == "DELETE" || type == 1) {
            out.now.emplace_back();
            continue;
        }
        auto value = read_value(**kv);
        if (!value) return value.error();
        if (value->mod_revision <= 0)
            return error(errc::malformed, "etcd's key has no mod_revision");
        out.now.push_back(std::move(*value));
    }
    return out;
}

SKEIN_INLINE etcd_failure read_failure(std::string_view body) {
    const auto parsed = read_object(body.substr(0, body.find('\n')));
    etcd_failure out{-1, std::string(body.substr(0, 200))};
    if (!parsed) return out;
    const json* said = &*parsed;
    if (const auto inner = parsed->find("error"); inner != parsed->end() && inner->is_object())
        said = &*inner;
    for (const char* name : {"code", "grpc_code"}) {
        const auto code = json_uint(*said, name);
        if (code && *code > 0 && *code < 100) {
            out.code = static_cast<int>(*code);
            out.text = stream_error(*said);
            break;
        }
    }
    return out;
}

SKEIN_INLINE std::string read_version(std::string_view body) {
    const auto parsed = read_object(body);
    if (!parsed) return {};
    const auto version = json_string(*parsed, "etcdserver");
    return version && version->size() < 32 ? *version : std::string();
}

// ---- what the keys hold -------------------------------------------------------------------------

SKEIN_INLINE std::string write_view(const stored_view& stored) {
    const view& v = stored.now;
    json members = json::array();
    for (const auto& m : v.members)
        members.push_back(
            json{{"id", m.id}, {"host", m.host}, {"keeper", m.keeper}, {"pid", m.pid}});
    const json out{{"format", 1},
                   {"generation", v.generation},
                   {"members", std::move(members)},
                   {"group", v.group},
                   {"author", v.author},
                   {"failures", v.failures},
                   {"why", v.why},
                   {"is_over", v.is_over},
                   {"nonce", stored.nonce},
                   {"before", stored.before}};
    return dump_json(out);
}

/// Takes members of an object one by one; the first that is missing or another thing is kept.
class json_taker {
public:
    explicit json_taker(const json& from) : from_(from) {}
    void take(const char* name, std::uint64_t& to) { keep(json_uint(from_, name), to); }
    void take(const char* name, std::string& to) { keep(json_string(from_, name), to); }
    void take(const char* name, bool& to) {
        const auto at = from_.find(name);
        if (at != from_.end() && at->is_boolean())
            to = at->get<bool>();
        else
            refuse(name, "true or false");
    }
    void take(const char* name, std::int64_t& to) {
        std::uint64_t number = 0;
        take(name, number);
        if (number > static_cast<std::uint64_t>(INT64_MAX))
            refuse(name, "so large a number");
        else
            to = static_cast<std::int64_t>(number);
    }
    void refuse(const char* name, const char* wanted) {
        if (!failure_)
            failure_ =
                error(errc::malformed, fmt::format("'{}' is missing or is not {}", name, wanted));
    }
    [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }

private:
    template <class T>
    void keep(result<T> found, T& to) {
        if (found)
            to = std::move(*found);
        else if (!failure_)
            failure_ = found.error();
    }
    const json& from_;
    std::optional<error> failure_;
};

/// Of a value of ours: an object of a format that this release reads.
[[nodiscard]] SKEIN_INLINE result<json> read_stored(std::string_view text) {
    auto parsed = parse_json(text, {.max_bytes = etcd_answer_limit, .max_depth = 8});
    if (!parsed) return parsed;
    if (!parsed->is_object()) return error(errc::malformed, "no JSON object");
    const auto format = json_uint(*parsed, "format");
    if (!format) return format.error();
    if (*format != 1)
        return error(errc::mismatch,
                     fmt::format("it has the format {} of another release", *format))
            .with_hint("run all supervisors of a job with the same release of skein");
    return parsed;
}

SKEIN_INLINE result<stored_view> read_view(std::string_view text) {
    const auto parsed = read_stored(text);
    if (!parsed) return parsed.error();
    stored_view out;
    view& v = out.now;
    json_taker from(*parsed);
    from.take("generation", v.generation);
    from.take("group", v.group);
    from.take("author", v.author);
    from.take("failures", v.failures);
    from.take("why", v.why);
    from.take("is_over", v.is_over);
    from.take("nonce", out.nonce);
    if (v.generation == 0) from.refuse("generation", "1 or more");
    if (from.failure()) return *from.failure();
    const auto members = etcd_objects(*parsed, "members");
    if (!members) return members.error();
    for (const auto* item : *members) {
        auto& m = v.members.emplace_back();
        json_taker member(*item);
        member.take("id", m.id);
        member.take("host", m.host);
        member.take("keeper", m.keeper);
        member.take("pid", m.pid);
        if (member.failure()) return *member.failure();
    }
    const auto before = parsed->find("before");
    if (before == parsed->end() || !before->is_array() || before->size() > etcd_views_named)
        return error(errc::malformed, "'before' is missing or is not an array of nonces");
    for (const auto& nonce : *before) {
        if (!nonce.is_string()) return error(errc::malformed, "'before' is not an array of nonces");
        out.before.push_back(nonce.get<std::string>());
    }
    return out;
}

SKEIN_INLINE bool is_by(const stored_view& stored, std::string_view nonce) noexcept {
    return stored.nonce == nonce ||
           std::find(stored.before.begin(), stored.before.end(), nonce) != stored.before.end();
}

SKEIN_INLINE std::string write_place(const coordinator_place& place) {
    return dump_json(json{{"format", 1}, {"id", place.id}, {"address", place.address}});
}

SKEIN_INLINE result<coordinator_place> read_place(std::string_view text) {
    const auto parsed = read_stored(text);
    if (!parsed) return parsed.error();
    coordinator_place out;
    json_taker from(*parsed);
    from.take("id", out.id);
    from.take("address", out.address);
    if (out.id == 0) from.refuse("id", "1 or more");
    if (from.failure()) return *from.failure();
    return out;
}

} // namespace skein::spmd::detail
