/* Permissions of files and directories that replace others: nobody gets access who did not have it before.
 *
 * Mode, owner, group and access control lists are kept. If the system does not let this user give a file its old group or
 * its old list, the permissions of the group are cleared. Other extended attributes (user.*, security labels) are not
 * copied: the new file gets those of any new file. */
#ifndef TSR_NATIVE_PERMISSIONS_H
#define TSR_NATIVE_PERMISSIONS_H

#include <stdbool.h>
#include <sys/stat.h>

/* The mode of a file or directory that will replace another one. Nobody else can open it until it gets the permissions of
 * the old one. */
#define TSR_PRIVATE_FILE   0600u
#define TSR_PRIVATE_FOLDER 0700u

/* Gives the new file or directory the permissions of `name` in `folder`, following links. Does nothing if that does not
 * exist. */
void tsr_keep_permissions_of(int folder, const char *name, int new_file);

#endif
