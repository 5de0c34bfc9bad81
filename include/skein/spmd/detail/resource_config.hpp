// SPDX-License-Identifier: Apache-2.0
#pragma once
// What SageMaker tells of the hosts of a job: SM_HOSTS, a list of names, and SM_RESOURCE_CONFIG, an
// object with groups of like hosts. A reader for as much JSON as that takes: every program that
// includes skein.hpp without the library would compile the JSON library for it.

#include <skein/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::spmd::detail {

/// Goes along a JSON text.
///   errors  malformed, of every member: what was expected at which byte
class json_reader {
public:
    explicit json_reader(std::string_view text) : text_(text) {}

    /// A string. Names need no escapes: of these only \" \\ \/ are read.
    [[nodiscard]] std::string string() {
        if (!take('"')) refuse("a string was expected");
        std::string out;
        for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
            if (text_[at_] == '\\') {
                ++at_;
                if (at_ == text_.size() || std::string_view("\"\\/").find(text_[at_]) == npos)
                    refuse("an escape in a name is not read");
            }
            out += text_[at_];
        }
        if (at_ == text_.size()) refuse("a string does not end");
        ++at_;
        return out;
    }
    /// Calls read() at each value of a list.
    template <class F>
    void list(F read) {
        if (!take('[')) refuse("a list was expected");
        if (take(']')) return;
        do read();
        while (take(','));
        if (!take(']')) refuse("a list does not end");
    }
    /// Calls read(key) at each value of an object.
    template <class F>
    void object(F read) {
        if (!take('{')) refuse("an object was expected");
        if (take('}')) return;
        do {
            const auto key = string();
            if (!take(':')) refuse("a colon was expected");
            read(key);
        } while (take(','));
        if (!take('}')) refuse("an object does not end");
    }
    /// Goes over a value of any kind.
    void skip(int depth = 0) {
        if (depth > 32) refuse("it is nested too deep");
        switch (next()) {
        case '[': return list([&] { skip(depth + 1); });
        case '{': return object([&](const std::string&) { skip(depth + 1); });
        case '"':
            for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_)
                if (text_[at_] == '\\') ++at_;
            if (at_ >= text_.size()) refuse("a string does not end");
            ++at_;
            return;
        default: break;
        }
        const auto from = at_;
        while (at_ < text_.size() && std::string_view("+-.").find(text_[at_]) != npos) ++at_;
        at_ = std::min(text_.find_first_of(" \t\r\n,]}", at_), text_.size());
        if (at_ == from) refuse("a value was expected");
    }
    /// Nothing follows.
    void end() {
        (void)next();
        if (at_ != text_.size()) refuse("nothing more was expected");
    }

private:
    static constexpr auto npos = std::string_view::npos;

    /// The character behind white space; 0 at the end.
    char next() {
        at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    bool take(char wanted) {
        if (next() != wanted || at_ == text_.size()) return false;
        ++at_;
        return true;
    }
    [[noreturn]] void refuse(const char* why) const {
        throw error(errc::malformed, fmt::format("byte {}: {}", at_, why));
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

/// Like hosts.
struct host_group {
    std::string name{};
    std::vector<std::string> hosts{};
};

/// Of SM_RESOURCE_CONFIG what says who does what.
struct resource_config {
    std::string current_host{}, current_group{}; ///< empty: it does not say
    std::vector<std::string> hosts{};
    std::vector<host_group> groups{};
};

/// ["algo-1", "algo-2"]
///   errors  malformed
[[nodiscard]] inline std::vector<std::string> read_names(json_reader& from) {
    std::vector<std::string> out;
    from.list([&] { out.push_back(from.string()); });
    return out;
}

///   errors  malformed
[[nodiscard]] inline resource_config read_resource_config(std::string_view text) {
    resource_config out;
    json_reader from(text);
    const auto group = [&] {
        host_group one;
        from.object([&](const std::string& key) {
            if (key == "instance_group_name")
                one.name = from.string();
            else if (key == "hosts")
                one.hosts = read_names(from);
            else
                from.skip();
        });
        if (one.name.empty())
            throw error(errc::malformed, "an instance group has no instance_group_name");
        out.groups.push_back(std::move(one));
    };
    from.object([&](const std::string& key) {
        if (key == "current_host")
            out.current_host = from.string();
        else if (key == "current_group_name")
            out.current_group = from.string();
        else if (key == "hosts")
            out.hosts = read_names(from);
        else if (key == "instance_groups")
            from.list(group);
        else
            from.skip();
    });
    from.end();
    return out;
}

} // namespace skein::spmd::detail
