# SPDX-License-Identifier: Apache-2.0
# libskein-dev, the header-only form, made by CPack: docs/consuming.md has the commands. A package for all machines
# holds no static library, and nothing that names a LibTorch of the machine it was made on.
if(SKEIN_COMPILED OR SKEIN_HAVE_MODULE OR SKEIN_HAVE_TORCH OR SKEIN_DEVELOPER_MODE)
  return()
endif()
foreach(part images etcd http)
  if(skein_no_${part})   # a package that depends on what the machine had is no package for all
    string(REPLACE "|" "; to get it: " said "${skein_no_${part}}")
    message(STATUS "skein: no Debian package is made: no ${said}")
    return()
  endif()
endforeach()
find_program(SKEIN_GZIP gzip)
mark_as_advanced(SKEIN_GZIP)
if(NOT SKEIN_GZIP OR NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  return()
endif()

# SOURCE_DATE_EPOCH decides the date, where it is set.
string(TIMESTAMP skein_debian_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(SKEIN_DEBIAN_MAINTAINER "skein developers <skein@packages.invalid>" CACHE STRING "Name and address in the Debian package")
set(doc "${CMAKE_INSTALL_DATADIR}/doc/libskein-dev")
configure_file(packaging/debian/changelog.in debian/changelog @ONLY)
execute_process(COMMAND "${SKEIN_GZIP}" -9nkf "${CMAKE_CURRENT_BINARY_DIR}/debian/changelog" COMMAND_ERROR_IS_FATAL ANY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/debian/changelog.gz" packaging/debian/copyright DESTINATION "${doc}")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libskein-dev)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "${SKEIN_DEBIAN_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "tasks, actors and training loops over one transport")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Coroutine tasks, remote functions and actors on worker processes, a wire format\n\
for aggregates, TCP and Unix sockets over Asio, and collectives, for C++20.\n\
.\n\
This package holds the header-only form: headers, CMake and pkg-config files,\n\
and the script check_await.py. The parts that need LibTorch are headers, too;\n\
LibTorch itself is no part of Debian's archive.")
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_DEPENDS
    "libasio-dev (>= 1:1.22), libfmt-dev (>= 9.1), libboost1.81-dev | libboost1.83-dev | libboost-dev (>= 1.81), nlohmann-json3-dev (>= 3.9), python3")
# For skein::images and skein::etcd alone.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libjpeg-dev, libpng-dev, libcurl4-openssl-dev | libcurl-dev")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES OFF)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
include(CPack)
