/* Who may read and write what takes a file's or a directory's place: nobody who could not before.
 *
 * Mode, owner, group and access control lists are kept. Where the system does not let this user give a file to the group that it
 * had, or keep its list, the bits of the group are cleared. Other extended attributes (user.*, security labels) are not kept: the
 * new file gets those of any new file. */
#ifndef TSR_NATIVE_PERMISSIONS_H
#define TSR_NATIVE_PERMISSIONS_H

#include <stdbool.h>
#include <sys/stat.h>

/* What a file is created with that will replace another one: until it gets those of the old one, nobody else can open it. */
#define TSR_PRIVATE_FILE   0600u
#define TSR_PRIVATE_FOLDER 0700u

/* Gives the new file the owner and the group of another one, and leaves it its mode. */
void tsr_keep_owner(const struct stat *info, int new_file);
/* Gives the new file or directory the permissions of what a name in `folder` leads to; nothing where it leads nowhere. */
void tsr_keep_permissions_of(int folder, const char *name, int new_file);

#endif
