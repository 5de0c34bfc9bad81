// SPDX-License-Identifier: Apache-2.0
#pragma once
// The config.json of a folder of Hugging Face's, and what a model of ours asks of it.

#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/wire/json.hpp>

#include <cstdint>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::models::detail {

/// One that is read; every message names the file.
class folder_config {
public:
    ///   kind    of model, for messages: "GPT-2"
    ///   sizes   the names of the sizes that such a file has, for a hint
    ///   errors  disk errors; malformed when it is no object
    folder_config(disk& where, const std::string& folder, std::string kind, std::string sizes)
        : path_(join_path(folder, "config.json")), kind_(std::move(kind)),
          sizes_(std::move(sizes)) {
        const auto text = where.read_whole(path_, 1u << 20);
        if (!text) throw text.error();
        auto made = parse_json(*text);
        if (!made) refuse(std::string(made.error().text()));
        if (!made->is_object()) refuse("it is not an object");
        values_ = std::move(*made);
    }

    /// Throws not_supported for a setting that this model has not, unless it is missing or what it
    /// does anyway.
    void require(const char* key, const json& wanted) const { require_in(values_, key, wanted); }
    /// The same in an object of the file.
    void require_in(const json& object, const char* key, const json& wanted) const {
        const auto found = object.find(key);
        if (found == object.end() || *found == wanted) return;
        throw error(errc::not_supported,
                    fmt::format("not supported: a {} whose {} is {}; it has to be {}", kind_, key,
                                dump_json(*found), dump_json(wanted)))
            .with_where(path_);
    }
    /// A size, from 1 on. Throws malformed when there is none.
    [[nodiscard]] std::int64_t size(const char* key) const {
        const auto value = json_uint(values_, key);
        if (!value || *value < 1 || *value > (1u << 30))
            throw error(errc::malformed, fmt::format("'{}' is missing or is not a size", key))
                .with_where(path_)
                .with_hint(fmt::format("config.json of a {} has {}", kind_, sizes_));
        return static_cast<std::int64_t>(*value);
    }
    [[nodiscard]] std::int64_t size(const char* key, std::int64_t otherwise) const {
        return has(key) ? size(key) : otherwise;
    }
    [[nodiscard]] double number(const char* key, double otherwise) const {
        const auto said = json_double(values_, key);
        return said ? *said : otherwise;
    }
    /// Whether it says something other than null.
    [[nodiscard]] bool has(const char* key) const {
        const auto found = values_.find(key);
        return found != values_.end() && !found->is_null();
    }
    [[nodiscard]] const json& values() const noexcept { return values_; }
    /// Throws malformed with the file's name.
    [[noreturn]] void refuse(std::string why) const {
        throw error(errc::malformed, std::move(why)).with_where(path_);
    }

private:
    std::string path_, kind_, sizes_;
    json values_;
};

} // namespace skein::models::detail
