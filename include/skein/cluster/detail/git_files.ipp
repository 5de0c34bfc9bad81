// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/git_files.hpp.

#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/proc/process.hpp>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::cluster::detail {

/// Files without a name take what git reads and writes: no pipe that both would have to watch.
SKEIN_INLINE unique_fd unnamed_file(std::string_view content = {}) {
    unique_fd file(::memfd_create("skein-git", MFD_CLOEXEC));
    if (!file) throw errno_error(errno, "open", "a file in memory for git");
    while (!content.empty()) {
        const auto n = skein::detail::retry_eintr(
            [&] { return ::write(file.get(), content.data(), content.size()); });
        if (n < 0) throw errno_error(errno, "write", "a file in memory for git");
        content.remove_prefix(static_cast<std::size_t>(n));
    }
    ::lseek(file.get(), 0, SEEK_SET);
    return file;
}

SKEIN_INLINE std::string whole_text(const unique_fd& file) {
    struct stat is{};
    if (::fstat(file.get(), &is) != 0) throw errno_error(errno, "read", "what git has said");
    std::string out(static_cast<std::size_t>(is.st_size), '\0');
    for (std::size_t got = 0; got < out.size();) {
        const auto n = skein::detail::retry_eintr([&] {
            return ::pread(file.get(), out.data() + got, out.size() - got, static_cast<off_t>(got));
        });
        if (n <= 0) throw errno_error(n < 0 ? errno : EIO, "read", "what git has said");
        got += static_cast<std::size_t>(n);
    }
    return out;
}

/// Where a command is, as a shell would find it; "" if it is nowhere.
SKEIN_INLINE std::string in_search_path(std::string_view command) {
    const char* const path = std::getenv("PATH");
    std::string_view rest = path != nullptr ? path : "/usr/bin:/bin";
    while (!rest.empty()) {
        const auto colon = rest.find(':');
        const auto folder = rest.substr(0, colon);
        rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
        auto file = fmt::format("{}/{}", folder.empty() ? "." : folder, command);
        struct stat is{};
        if (::access(file.c_str(), X_OK) == 0 && ::stat(file.c_str(), &is) == 0 &&
            S_ISREG(is.st_mode))
            return file;
    }
    return {};
}

SKEIN_INLINE std::vector<std::string> zero_ended(std::string_view text) {
    std::vector<std::string> out;
    while (!text.empty()) {
        const auto end = text.find('\0');
        out.emplace_back(text.substr(0, end));
        text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    }
    return out;
}

SKEIN_INLINE std::optional<git_answer> run_git(const std::string& folder,
                                               std::vector<std::string> arguments,
                                               std::string_view input) {
    proc::process_options how;
    how.executable = in_search_path("git");
    if (how.executable.empty()) return std::nullopt;
    // A hook of the folder's own is not run for a listing.
    how.argv = {"git", "-C", folder, "-c", "core.fsmonitor=false"};
    for (auto& each : arguments) how.argv.push_back(std::move(each));
    how.env = {{"LC_ALL", "C"}, {"GIT_OPTIONAL_LOCKS", "0"}};
    // The repository is that of the folder, also when we run in a hook of another one.
    how.unset_env = {"GIT_DIR",
                     "GIT_WORK_TREE",
                     "GIT_INDEX_FILE",
                     "GIT_COMMON_DIR",
                     "GIT_OBJECT_DIRECTORY",
                     "GIT_NAMESPACE",
                     "GIT_PREFIX",
                     "GIT_LITERAL_PATHSPECS",
                     "GIT_GLOB_PATHSPECS",
                     "GIT_ICASE_PATHSPECS"};
    how.last_words = false;
    how.keep_stdin = true;
    const auto in = unnamed_file(input), out = unnamed_file(), errors = unnamed_file();
    how.fds = {{in.get(), 0}};
    how.stdout_fd = out.get();
    how.stderr_fd = errors.get();
    auto child = proc::child_process::spawn(std::move(how));
    const auto status = child.wait_blocking();
    if (!status.exited())
        throw error(errc::io, fmt::format("git in {} was {}", folder, status.describe()));
    return git_answer{status.code(), whole_text(out), whole_text(errors)};
}

SKEIN_INLINE error git_says_no(const std::string& folder, const git_answer& said) {
    auto why = said.errors.empty() ? fmt::format("it exited with {}", said.code) : said.errors;
    while (why.ends_with('\n')) why.pop_back();
    return error(errc::io, fmt::format("cannot list {} by git", folder))
        .with_cause(std::move(why))
        .with_hint("mend that, or copy what the job needs to a folder without .git");
}

SKEIN_INLINE bool is_below_git(const std::string& folder) {
    char* const whole = ::realpath(folder.c_str(), nullptr);
    if (whole == nullptr) return false;
    std::string at = whole;
    std::free(whole); // NOLINT: realpath's
    for (;;) {
        struct stat is{};
        if (::lstat((at + "/.git").c_str(), &is) == 0) return true;
        const auto slash = at.rfind('/');
        if (slash == std::string::npos || at.size() <= 1) return false;
        at.resize(slash);
    }
}

SKEIN_INLINE std::optional<std::vector<std::string>> git_files(const std::string& folder) {
    if (!is_below_git(folder)) return std::nullopt;
    // Of a folder that is ignored as a whole git would list nothing, and it was asked for.
    const auto ignored = run_git(folder, {"check-ignore", "-q", "--no-index", "--", "."});
    if (!ignored) {
        logging::warn("cluster", "git is not installed: what .gitignore leaves out goes along",
                      {{"folder", folder}});
        return std::nullopt;
    }
    if (ignored->code == 0) return std::nullopt;
    if (ignored->code != 1) {
        if (ignored->errors.find("not a git repository") != std::string::npos) {
            logging::warn("cluster",
                          "git takes it for no repository, though there is a .git: what "
                          ".gitignore leaves out goes along",
                          {{"folder", folder}});
            return std::nullopt;
        }
        throw git_says_no(folder, *ignored);
    }
    const auto listed =
        run_git(folder, {"ls-files", "--cached", "--others", "--exclude-standard", "-z"});
    if (!listed || listed->code != 0) throw git_says_no(folder, listed.value_or(git_answer{}));
    return zero_ended(listed->output);
}

SKEIN_INLINE std::vector<std::string> git_ignored(const std::string& folder,
                                                  const std::vector<std::string>& paths) {
    if (paths.empty()) return {};
    std::string input;
    // "./" keeps a name that begins with a colon from being more than a name.
    for (const auto& path : paths) input.append("./").append(path).push_back('\0');
    const auto said = run_git(folder, {"check-ignore", "-z", "--stdin"}, input);
    if (!said || said->code > 1) throw git_says_no(folder, said.value_or(git_answer{}));
    auto out = zero_ended(said->output);
    for (auto& path : out) path.erase(0, 2);
    return out;
}

} // namespace skein::cluster::detail
