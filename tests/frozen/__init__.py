"""What must not change while the code is renamed and moved, as files that tests compare with.

Every file lies in data/ and was written from code that is known to be good. A test that fails here
says that the wire, the disk or a name that users know is not what it was. If that is meant, write
the file anew and explain in the commit how old clients, stores and engines get along with it.
"""
