// SPDX-License-Identifier: Apache-2.0
// Asks an etcd that is none: what is said of it comes from skein::etcd.
#include <skein/net/real_loop.hpp>
#include <skein/spmd/etcd_register.hpp>

#include <cstdio>
#include <string>

int main() {
    skein::net::real_loop loop;
    skein::spmd::etcd_options options;
    options.job = "job";
    options.endpoints = {"http://localhost:0"};
    const skein::spmd::etcd_register views(options);
    try {
        options.endpoints.clear();
        const skein::spmd::etcd_register none(options);
    } catch (const skein::error& e) {
        std::printf("%s\n", e.what());
        return 0;
    }
    return 1;
}
