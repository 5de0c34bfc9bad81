// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parser of requests: Boost.Beast's machine on memory buffers, and what it leaves open.
//
// The machine gets a header when all of it is there, since its own bound forgets the lines that it
// has taken already, and no body: it asserts where a last chunk comes in pieces.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/wire/detail/http_chunks.hpp>
#include <skein/wire/detail/http_text.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <boost/beast/http/basic_parser.hpp>
#include <fmt/core.h>

namespace skein::wire {
namespace detail {

namespace beast_http = boost::beast::http;
using beast_error = boost::beast::error_code;
using beast_text = boost::beast::string_view;

/// The header of one request.
class http_message final : public beast_http::basic_parser<true> {
public:
    explicit http_message(const http_limits& bounds) : bounds_(bounds) {
        header_limit(static_cast<std::uint32_t>(bounds.header_bytes + 4));
        body_limit(bounds.body_bytes);
    }
    http_request out;
    std::optional<http_fault> fault;
    [[nodiscard]] std::size_t fields() const noexcept { return fields_; }

private:
    void refuse(int status, errc code, std::string why, beast_error& ec) {
        if (!fault) fault = http_fault{status, code, std::move(why)};
        ec = beast_http::error::bad_value;
    }
    void refuse(std::string why, beast_error& ec) {
        refuse(400, errc::malformed, std::move(why), ec);
    }

    void on_request_impl(beast_http::verb, beast_text method, beast_text target, int version,
                         beast_error& ec) override {
        version_ = version;
        out.method = std::string(method);
        if (auto wrong = read_target(std::string_view(target), out)) refuse(std::move(*wrong), ec);
    }
    void on_response_impl(int, beast_text, int, beast_error& ec) override {
        refuse("a response where a request belongs", ec);
    }
    void on_field_impl(beast_http::field, beast_text name, beast_text value,
                       beast_error& ec) override {
        if (++fields_ > bounds_.headers)
            return refuse(431, errc::too_large,
                          fmt::format("more than {} headers", bounds_.headers), ec);
        auto known = lower(std::string_view(name));
        constexpr std::array<std::string_view, 9> once = {
            "host",         "origin", "content-length", "transfer-encoding", "authorization",
            "content-type", "expect", "last-event-id",  "sec-fetch-site"};
        if (std::find(once.begin(), once.end(), known) != once.end() && out.header(known))
            return refuse("two headers of the name " + known, ec);
        if (known == "content-length" && !is_number(value))
            return refuse("the length is not a number", ec);
        if (known == "transfer-encoding" && lower(std::string_view(value)) != "chunked")
            return refuse(501, errc::not_supported, "a transfer encoding other than chunked", ec);
        if (known == "expect") {
            if (lower(std::string_view(value)) != "100-continue")
                return refuse("an expectation other than 100-continue", ec);
            out.expects_continue = version_ == 11;
        }
        out.headers.emplace_back(std::move(known), std::string(value));
    }
    void on_header_impl(beast_error& ec) override {
        out.keep_alive = keep_alive();
        if (version_ == 11 && !out.header("host")) return refuse("no Host header", ec);
        if (!out.header("transfer-encoding")) return;
        if (version_ == 10) return refuse("chunks in HTTP/1.0", ec);
        if (out.header("content-length")) return refuse("a length and a transfer encoding", ec);
    }
    void on_body_init_impl(const boost::optional<std::uint64_t>&, beast_error&) override {}
    std::size_t on_body_impl(beast_text, beast_error&) override { return 0; }
    void on_chunk_header_impl(std::uint64_t, beast_text, beast_error&) override {}
    std::size_t on_chunk_body_impl(std::uint64_t, beast_text, beast_error&) override { return 0; }
    void on_finish_impl(beast_error&) override {}

    static bool is_number(beast_text value) {
        return !value.empty() && value.size() <= 19 &&
               std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
    }

    http_limits bounds_;
    std::size_t fields_ = 0;
    int version_ = 0; // 10 or 11
};

class http_machine {
public:
    explicit http_machine(http_limits bounds) : bounds_(bounds) { begin(); }

    void feed(byte_span more) {
        if (!fault_) append(pending_, more);
    }

    result<http_stage> advance() {
        if (fault_) return failure();
        if (stage_ == http_stage::more) { // of the header
            const auto end = header_end();
            if (fault_) return failure();
            if (end == 0) return http_stage::more;
            if (!read_header(end)) return failure();
            stage_ = http_stage::header;
            return stage_;
        }
        if (stage_ == http_stage::header) {
            if (!read_body()) return failure();
            if (!is_whole()) return http_stage::more;
        }
        stage_ = http_stage::complete;
        return stage_;
    }

    [[nodiscard]] const http_request& request() const noexcept { return message_->out; }
    http_request take() {
        SKEIN_CHECK(stage_ == http_stage::complete, "take() of a request that is not complete");
        http_request out = std::move(message_->out);
        begin();
        return out;
    }
    [[nodiscard]] int status() const noexcept { return fault_ ? fault_->status : 0; }
    [[nodiscard]] bool is_idle() const noexcept {
        return !fault_ && stage_ == http_stage::more && pending_.empty();
    }
    [[nodiscard]] std::size_t buffered() const noexcept { return pending_.size(); }

private:
    void begin() {
        message_.emplace(bounds_);
        stage_ = http_stage::more;
        chunks_.reset();
        looked_ = left_ = 0;
    }
    error fail(http_fault why) {
        fault_ = std::move(why);
        pending_.clear();
        return failure();
    }
    [[nodiscard]] error failure() const {
        return error(fault_->code, "the request is refused: " + fault_->why);
    }

    /// Where the header ends, 0: not here. Looks at every byte once.
    std::size_t header_end() {
        const auto text = as_text(pending_);
        for (; looked_ < text.size(); ++looked_) {
            const std::size_t i = looked_;
            if (i >= bounds_.header_bytes) {
                (void)fail(
                    {431, errc::too_large,
                     fmt::format("its header has more than {} bytes", bounds_.header_bytes)});
                return 0;
            }
            const char before = i > 0 ? text[i - 1] : '\0';
            if (text[i] == '\n' && before != '\r') {
                (void)fail({400, errc::malformed, "a line ends without a carriage return"});
                return 0;
            }
            if (static_cast<unsigned char>(text[i]) < 0x20 && text[i] != '\r' && text[i] != '\n' &&
                text[i] != '\t') {
                (void)fail({400, errc::malformed, "there are control characters in its header"});
                return 0;
            }
            if (before == '\n' && (text[i] == ' ' || text[i] == '\t')) {
                (void)fail({400, errc::malformed, "a header goes on in the next line"});
                return 0;
            }
            if (text[i] == '\n' && i >= 3 && text.substr(i - 3, 4) == "\r\n\r\n") return i + 1;
        }
        return 0;
    }

    /// Gives the header to the machine; false: there is a fault.
    bool read_header(std::size_t bytes) {
        beast_error ec;
        const auto used =
            message_->put(boost::beast::net::const_buffer(pending_.data(), bytes), ec);
        if (ec && ec != beast_http::error::need_more) return (void)fail(reason(ec)), false;
        if (used != bytes || !message_->is_header_done())
            return (void)fail({400, errc::malformed, "the header does not end where it should"}),
                   false;
        drop(bytes);
        if (message_->chunked()) chunks_.emplace(bounds_, message_->fields());
        left_ = static_cast<std::size_t>(message_->content_length().value_or(0));
        return true;
    }

    bool read_body() {
        auto& body = message_->out.body;
        if (chunks_) {
            drop(chunks_->take(as_text(pending_), body));
            if (chunks_->fault() != nullptr) return (void)fail(*chunks_->fault()), false;
            return true;
        }
        const auto n = std::min(left_, pending_.size());
        body.append(as_text(pending_).substr(0, n));
        drop(n);
        left_ -= n;
        return true;
    }
    [[nodiscard]] bool is_whole() const noexcept {
        return chunks_ ? chunks_->is_done() : left_ == 0;
    }

    void drop(std::size_t bytes) {
        pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(bytes));
    }

    http_fault reason(const beast_error& ec) {
        if (message_->fault) return std::move(*message_->fault);
        if (ec == beast_http::error::body_limit)
            return {413, errc::too_large,
                    fmt::format("its body has more than {} bytes", bounds_.body_bytes)};
        if (ec == beast_http::error::header_limit)
            return {431, errc::too_large, "its header is too large"};
        if (ec == beast_http::error::bad_version)
            return {505, errc::not_supported, "only HTTP/1.0 and HTTP/1.1 are spoken here"};
        return {400, errc::malformed, ec.message()};
    }

    http_limits bounds_;
    byte_buffer pending_;
    std::optional<http_message> message_;
    http_stage stage_ = http_stage::more;
    std::size_t looked_ = 0; // of pending_, for the header's end
    std::size_t left_ = 0;   // of a body whose length was told
    std::optional<http_chunks> chunks_;
    std::optional<http_fault> fault_;
};

} // namespace detail

SKEIN_INLINE http_parser::http_parser(http_limits bounds)
    : machine_(std::make_unique<detail::http_machine>(bounds)) {}
SKEIN_INLINE http_parser::http_parser(http_parser&&) noexcept = default;
SKEIN_INLINE http_parser& http_parser::operator=(http_parser&&) noexcept = default;
SKEIN_INLINE http_parser::~http_parser() = default;

SKEIN_INLINE void http_parser::feed(byte_span bytes) { machine_->feed(bytes); }
SKEIN_INLINE result<http_stage> http_parser::advance() { return machine_->advance(); }
SKEIN_INLINE const http_request& http_parser::request() const noexcept {
    return machine_->request();
}
SKEIN_INLINE http_request http_parser::take() { return machine_->take(); }
SKEIN_INLINE int http_parser::status() const noexcept { return machine_->status(); }
SKEIN_INLINE bool http_parser::is_idle() const noexcept { return machine_->is_idle(); }
SKEIN_INLINE std::size_t http_parser::buffered() const noexcept { return machine_->buffered(); }

} // namespace skein::wire
