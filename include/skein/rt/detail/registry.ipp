// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/registry.hpp.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/type_name.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE const registry& registry::instance() {
    static const registry built = [] {
        std::vector<function_record*> all;
        for (auto* r = first_; r != nullptr; r = r->next) all.push_back(r);
        built_ = true;
        auto made = build(std::move(all));
        SKEIN_CHECK(made, "{}", made.error().what());
        return std::move(*made);
    }();
    return built;
}

SKEIN_INLINE void registry::add(function_record& record) {
    SKEIN_CHECK(!built_,
                "remote function {} comes from a library that was loaded after the runtime "
                "started; link it into the program",
                readable_name(record.mangled));
    record.next = first_;
    first_ = &record;
}

SKEIN_INLINE std::string registry::function_name(const function_record& r) {
    const std::string mangled = r.shown != nullptr ? r.shown : r.mangled;
    // A tag<&app::f> has the mangled name of app::f inside, which tells its parameters too.
    const auto inner = mangled.find("XadL_Z");
    if (inner != std::string::npos && mangled.ends_with("EEEE")) {
        const auto name = mangled.substr(inner + 4, mangled.size() - inner - 8);
        const auto text = readable_name(name.c_str());
        if (text != name) return text;
    }
    auto text = readable_name(mangled.c_str());
    const auto open = text.find('<');
    if (open == std::string::npos || text.back() != '>') return text;
    text = text.substr(open + 1, text.size() - open - 2);
    if (!r.is_constructor) return text;
    int depth = 0; // the first comma outside of template arguments ends the class
    for (std::size_t i = 0; i < text.size(); ++i) {
        depth += text[i] == '<' ? 1 : text[i] == '>' ? -1 : 0;
        if (text[i] == ',' && depth == 0) return text.substr(0, i) + "(" + text.substr(i + 2) + ")";
    }
    return text + "()";
}

SKEIN_INLINE result<registry> registry::build(std::vector<function_record*> records) {
    registry made;
    for (auto* r : records) {
        r->key = detail::hash_text(r->mangled);
        r->name = function_name(*r);
        r->signature = r->signature_hash();
    }
    std::sort(records.begin(), records.end(), [](auto* a, auto* b) { return a->key < b->key; });
    for (std::size_t i = 0; i < records.size(); ++i) {
        auto& r = *records[i];
        r.index = static_cast<std::uint32_t>(i);
        made.hash_ = detail::hash_mix(detail::hash_mix(made.hash_, r.key), r.signature);
        if (i == 0 || records[i - 1]->key != r.key) continue;
        const auto& other = *records[i - 1];
        if (std::string_view(other.mangled) == r.mangled)
            return error(errc::already_exists,
                         fmt::format("two remote functions are both called {}", r.name))
                .with_hint("functions in anonymous namespaces or static ones of different files "
                           "share one name: give one of them another name or a namespace");
        return error(errc::mismatch, fmt::format("the names of remote functions {} and {} have the "
                                                 "same hash",
                                                 other.name, r.name))
            .with_hint("rename one of them");
    }
    made.records_ = std::move(records);
    return made;
}

} // namespace skein::rt
