// SPDX-License-Identifier: Apache-2.0
#pragma once
// libcurl's multi handle, and how its thread and a loop hand requests to each other.

#include <skein/core/loop.hpp>
#include <skein/core/printable.hpp>
#include <skein/spmd/detail/etcd_messages.hpp>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace skein::spmd::detail {

class curl_wait;

/// One request. The loop writes it before it is submitted and reads it after its end; the thread has
/// it in between.
struct curl_job {
    // what is asked
    std::string url, body, token;
    long timeout_ms = 0, connect_ms = 0;
    bool needs_leader = false, is_stream = false;
    loop* home = nullptr;
    curl_wait* waiting = nullptr; ///< touched on the loop only

    // the thread's
    CURL* handle = nullptr;
    curl_slist* headers = nullptr;
    char reason[CURL_ERROR_SIZE] = {};
    bool too_long = false;
    std::string text; ///< of the answer; of a stream: the line that is not yet whole

    etcd_answer answer;

    ~curl_job() {
        if (handle != nullptr) curl_easy_cleanup(handle);
        curl_slist_free_all(headers);
    }
    curl_job() = default;
    curl_job(const curl_job&) = delete;
    curl_job& operator=(const curl_job&) = delete;
};

/// Suspends until the thread has let go of the request, or a line has come.
class curl_wait : public waiter {
public:
    curl_wait(curl_transport& transport, std::shared_ptr<curl_job> job)
        : transport_(transport), job_(std::move(job)) {}
    bool await_ready() const noexcept { return ended || !lines.empty(); }
    template <skein::detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        return arm(h, !stopping); // what is being broken off ends soon
    }
    void await_resume() const noexcept {}

    /// Breaks the request off; its end still comes.
    void stop() {
        if (std::exchange(stopping, true)) return;
        lines.clear();
        transport_.abort(job_);
    }
    // On the loop, called by what the thread posts; over() is the last.
    void came(std::string line) {
        if (stopping) return;
        lines.push_back(std::move(line));
        wake();
    }
    void over() {
        ended = true;
        wake();
    }

    std::deque<std::string> lines;
    bool ended = false, stopping = false, cancelled = false;

protected:
    void cancel_requested() noexcept override {
        cancelled = true;
        stop();
    }

private:
    curl_transport& transport_;
    std::shared_ptr<curl_job> job_;
};

// ---- on the thread of the loop ------------------------------------------------------------------

SKEIN_INLINE void set_up_curl() {
    static std::once_flag once;
    std::call_once(once, [] {
        if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
            throw error(errc::internal, "libcurl cannot be set up");
    });
}

SKEIN_INLINE void check_curl_file(const char* option, const std::string& path) {
    if (path.empty() || ::access(path.c_str(), R_OK) == 0) return;
    throw error(errc::not_found,
                fmt::format("etcd: the file of the option {} cannot be read", option))
        .with_where(printable(path));
}

SKEIN_INLINE curl_transport::curl_transport(curl_files files) : files_(std::move(files)) {
    check_curl_file("ca", files_.ca);
    check_curl_file("cert", files_.cert);
    check_curl_file("key", files_.key);
    set_up_curl();
    multi_ = curl_multi_init();
    if (multi_ == nullptr) throw error(errc::exhausted, "libcurl has no memory");
    try {
        thread_ = std::thread([this] { main(); });
    } catch (const std::system_error& e) {
        curl_multi_cleanup(multi_);
        throw error(errc::exhausted, "the thread for etcd does not start").with_cause(e.what());
    }
}

SKEIN_INLINE curl_transport::~curl_transport() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    (void)curl_multi_wakeup(multi_);
    thread_.join();
    SKEIN_CHECK(jobs_.empty(), "a register in etcd is destroyed while {} of its calls run",
                jobs_.size());
    curl_multi_cleanup(multi_);
}

SKEIN_INLINE std::size_t curl_transport::running() {
    const std::lock_guard lock(mutex_);
    return number_;
}

SKEIN_INLINE void curl_transport::submit(std::shared_ptr<curl_job> job) {
    {
        const std::lock_guard lock(mutex_);
        wanted_.push_back(std::move(job));
        ++number_;
    }
    (void)curl_multi_wakeup(multi_);
}

SKEIN_INLINE void curl_transport::abort(const std::shared_ptr<curl_job>& job) {
    {
        const std::lock_guard lock(mutex_);
        unwanted_.push_back(job);
    }
    (void)curl_multi_wakeup(multi_);
}

SKEIN_INLINE task<etcd_answer> curl_transport::exchange(const etcd_request& request,
                                                        etcd_line* on_line) {
    using std::chrono::milliseconds;
    auto* const under = co_await skein::detail::current_cancel{};
    if (under != nullptr && under->requested()) throw cancelled_error();
    auto job = std::make_shared<curl_job>();
    job->url = request.url;
    job->body = request.body;
    job->token = request.token;
    job->timeout_ms = static_cast<long>(
        std::max<std::int64_t>(1, std::chrono::ceil<milliseconds>(request.timeout).count()));
    job->connect_ms = std::min<long>(job->timeout_ms, 3000);
    job->needs_leader = request.needs_leader;
    job->is_stream = on_line != nullptr;
    job->home = &loop::current();
    curl_wait wait(*this, job);
    job->waiting = &wait;
    submit(job);
    bool wanted = true;
    while (!wait.ended) {
        if (under != nullptr && under->requested() && !wait.stopping) {
            wait.cancelled = true; // while it was not suspended
            wait.stop();
        }
        co_await wait;
        while (!wait.lines.empty()) {
            const auto line = std::move(wait.lines.front());
            wait.lines.pop_front();
            if ((*on_line)(line)) continue;
            wanted = false;
            wait.stop();
        }
    }
    if (!wanted) co_return etcd_answer{etcd_trouble::none, {}, 200, {}};
    if (wait.cancelled) throw cancelled_error();
    co_return std::move(job->answer);
}

// ---- on the thread ------------------------------------------------------------------------------

/// Called by libcurl with bytes of an answer.
SKEIN_INLINE std::size_t take_curl_bytes(char* bytes, std::size_t one, std::size_t count,
                                         void* to) noexcept {
    auto& job = *static_cast<curl_job*>(to);
    const std::size_t size = one * count;
    try {
        if (job.text.size() + size > etcd_answer_limit) {
            job.too_long = true;
            return 0;
        }
        job.text.append(bytes, size);
        long status = 0;
        (void)curl_easy_getinfo(job.handle, CURLINFO_RESPONSE_CODE, &status);
        if (!job.is_stream || status != 200) return size;
        std::size_t begin = 0;
        for (auto at = job.text.find('\n'); at != std::string::npos;
             at = job.text.find('\n', begin)) {
            auto line = job.text.substr(begin, at - begin);
            begin = at + 1;
            if (line.empty()) continue;
            job.home->post_from_any_thread([wait = job.waiting, line = std::move(line)]() mutable {
                wait->came(std::move(line));
            });
        }
        job.text.erase(0, begin);
        return size;
    } catch (const std::bad_alloc&) {
        job.too_long = true;
        return 0;
    }
}

SKEIN_INLINE void curl_transport::set_up(CURL* handle, curl_job& job) {
    const auto header = [&](const std::string& line) {
        job.headers = curl_slist_append(job.headers, line.c_str());
    };
    header("Content-Type: application/json");
    header("Expect:"); // no waiting for "100 Continue"
    if (!job.token.empty()) header("Authorization: " + job.token);
    if (job.needs_leader) header("Grpc-Metadata-hasleader: true");
    (void)curl_easy_setopt(handle, CURLOPT_URL, job.url.c_str());
    (void)curl_easy_setopt(handle, CURLOPT_HTTPHEADER, job.headers);
    if (!job.body.empty()) {
        (void)curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE,
                               static_cast<curl_off_t>(job.body.size()));
        (void)curl_easy_setopt(handle, CURLOPT_POSTFIELDS, job.body.c_str());
    }
    (void)curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
    (void)curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(handle, CURLOPT_PROXY, ""); // etcd is of this cluster
    (void)curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, job.timeout_ms);
    (void)curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, job.connect_ms);
    (void)curl_easy_setopt(handle, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, job.reason);
    (void)curl_easy_setopt(handle, CURLOPT_PRIVATE, &job);
    (void)curl_easy_setopt(handle, CURLOPT_WRITEDATA, &job);
    (void)curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &take_curl_bytes);
#if LIBCURL_VERSION_NUM >= 0x075500
    (void)curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    (void)curl_easy_setopt(handle, CURLOPT_PROTOCOLS, long{CURLPROTO_HTTP | CURLPROTO_HTTPS});
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
    (void)curl_easy_setopt(handle, CURLOPT_QUICK_EXIT, 1L); // a name server may be silent
#endif
    if (!files_.ca.empty()) (void)curl_easy_setopt(handle, CURLOPT_CAINFO, files_.ca.c_str());
    if (!files_.cert.empty()) {
        (void)curl_easy_setopt(handle, CURLOPT_SSLCERT, files_.cert.c_str());
        (void)curl_easy_setopt(handle, CURLOPT_SSLKEY, files_.key.c_str());
    }
}

SKEIN_INLINE void curl_transport::begin(const std::shared_ptr<curl_job>& job) {
    jobs_.push_back(job);
    job->handle = curl_easy_init();
    if (job->handle == nullptr) {
        end(*job, CURLE_OUT_OF_MEMORY);
        return;
    }
    set_up(job->handle, *job);
    if (curl_multi_add_handle(multi_, job->handle) != CURLM_OK) end(*job, CURLE_OUT_OF_MEMORY);
}

/// What does not pass by itself.
[[nodiscard]] SKEIN_INLINE bool is_curl_mistake(CURLcode code, std::string_view why) noexcept {
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY: return true; // no HTTP
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_RECV_ERROR: // a client certificate is refused behind the handshake
    case CURLE_SEND_ERROR:
        for (const std::string_view part :
             {"wrong version number", "alert certificate required", "alert bad certificate",
              "alert unknown ca", "alert unsupported certificate"}) {
            if (why.find(part) != std::string_view::npos) return true;
        }
        return false;
    default: return false;
    }
}

/// Takes it out of the multi handle, and tells the loop. Nothing is called for it any more.
SKEIN_INLINE void curl_transport::end(curl_job& job, CURLcode code) {
    const auto at = std::find_if(jobs_.begin(), jobs_.end(),
                                 [&](const auto& other) { return other.get() == &job; });
    if (at == jobs_.end()) return; // it had ended
    const auto kept = std::move(*at);
    jobs_.erase(at);
    if (job.handle != nullptr) {
        long status = 0;
        (void)curl_easy_getinfo(job.handle, CURLINFO_RESPONSE_CODE, &status);
        (void)curl_multi_remove_handle(multi_, job.handle);
        curl_easy_cleanup(std::exchange(job.handle, nullptr));
        job.answer.status = static_cast<int>(status);
    }
    if (code != CURLE_OK) {
        job.answer.why = job.too_long
                             ? fmt::format("an answer of more than {} bytes", etcd_answer_limit)
                         : job.reason[0] != '\0' ? printable(job.reason)
                                                 : std::string(curl_easy_strerror(code));
        job.answer.trouble =
            is_curl_mistake(code, job.answer.why) ? etcd_trouble::mistake : etcd_trouble::away;
    } else {
        job.answer.body = std::move(job.text);
    }
    {
        const std::lock_guard lock(mutex_);
        --number_;
    }
    // The job lives until the loop has been told, and its coroutine until then, too.
    job.home->post_from_any_thread([kept] { kept->waiting->over(); });
}

SKEIN_INLINE bool curl_transport::take_orders() {
    std::vector<std::shared_ptr<curl_job>> wanted, unwanted;
    bool stopping = false;
    {
        const std::lock_guard lock(mutex_);
        wanted.swap(wanted_);
        unwanted.swap(unwanted_);
        stopping = stopping_;
    }
    for (const auto& job : wanted) begin(job);
    for (const auto& job : unwanted) end(*job, CURLE_ABORTED_BY_CALLBACK);
    return !stopping;
}

SKEIN_INLINE void curl_transport::take_ended() {
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
        if (message->msg != CURLMSG_DONE) continue;
        const auto code = message->data.result; // gone with the handle
        char* job = nullptr;
        (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &job);
        end(*reinterpret_cast<curl_job*>(job), code); // NOLINT: libcurl keeps it as a char*
    }
}

SKEIN_INLINE void curl_transport::main() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_setname_np(pthread_self(), "skein-etcd");
    while (take_orders()) {
        int running = 0;
        (void)curl_multi_perform(multi_, &running);
        take_ended();
        constexpr int long_enough = 1000; // ms; orders wake it
        (void)curl_multi_poll(multi_, nullptr, 0, long_enough, nullptr);
    }
}

} // namespace skein::spmd::detail
